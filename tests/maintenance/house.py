"""A whole service in this process, on real files in a temporary directory, with a test clock."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from querator.clock import ManualClock
from querator.config import DaemonConfig, StorageConfig
from querator.config_file import LimitsConfig
from querator.daemon.access import Caller, CallerKind
from querator.daemon.engine import at_store
from querator.daemon.queue.logical import Logical
from querator.daemon.queue.partition import Partition
from querator.daemon.service import Service
from querator.errors import QueratorError
from querator.items import Role
from querator.wire import json, leased
from querator.wire import messages as m

SECOND = 1_000_000
OPERATOR = Caller(CallerKind.USER, "operator", Role.ADMIN)
WAIT_SECONDS = 60.0
"""A test fails when an answer takes longer. A busy machine needs far less."""

Future = concurrent.futures.Future[Any]
_REQUESTS: dict[str, Any] = {"pause": m.PartitionsPauseRequest, "reload": m.PartitionsReloadRequest}


class House:
    def __init__(self, directory: Path, storages: tuple[str, ...] = ("default", "other"), **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock(1_800_000_000 * SECOND)
        self.config = DaemonConfig(
            data=directory,
            socket=directory / "querator.sock",
            http=None,
            storages=tuple(
                # New partitions go to the first storage. Tests name the other storages explicitly.
                StorageConfig(name, directory / name, 1.0 if number == 0 else 0.0)
                for number, name in enumerate(storages)
            ),
            limits=LimitsConfig(),
            **settings,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.is_open = True
        self.service: Service
        self.start()

    # -- start and stop

    def start(self) -> None:
        async def start() -> Service:
            service = Service(self.config, self.clock)
            await service.start()
            return service

        self.service = self.run(start())
        self.registry = self.service.registry

    def restart(self) -> None:
        """Stops the service cleanly and starts it on the same files."""
        self.run(self.service.stop())
        self.start()

    def close(self) -> None:
        self.is_open = False
        self.run(self.service.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- calls

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def begin(self, route: str, request: Any) -> Future:
        """Sends a request, and returns a future for its answer."""
        answer: Future = concurrent.futures.Future()
        sent = threading.Event()

        def respond(result: Any) -> None:
            if isinstance(result, QueratorError):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def send() -> None:
            self.service.call(route, request, respond, OPERATOR)
            sent.set()

        self._loop.call_soon_threadsafe(send)
        sent.wait(WAIT_SECONDS)
        return answer

    def call(self, route: str, request: Any) -> Any:
        return self.begin(route, request).result(WAIT_SECONDS)

    def refusal(self, route: str, request: Any) -> QueratorError:
        error = self.begin(route, request).exception(WAIT_SECONDS)
        assert isinstance(error, QueratorError), error
        return error

    def advance(self, by: str) -> None:
        self.call("clock.advance", m.ClockAdvanceRequest(by=by))

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that happens in real time, in another thread."""
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.002)

    # -- short ways

    def create(self, name: str = "q", partitions: int = 1, **settings: Any) -> None:
        settings = {"lease_timeout": "1m", "expire_timeout": "24h", **settings}
        self.call("queues.create", m.QueueInfo(queue_name=name, requested_partitions=partitions, **settings))

    def produce(self, *texts: str, queue: str = "q", at: int | None = None) -> None:
        self.begin_produce(*texts, queue=queue, at=at).result(WAIT_SECONDS)

    def begin_produce(self, *texts: str, queue: str = "q", at: int | None = None, timeout: str = "1m") -> Future:
        items = [m.QueueProduceItem(utf8=text, enqueue_at=at) for text in texts]
        request = m.QueueProduceRequest(queue_name=queue, request_timeout=timeout, items=items)
        return self.begin("queue.produce", request)

    def lease(self, count: int = 1, queue: str = "q", client: str = "me") -> list[m.QueueLeaseItem]:
        reply = self.begin_lease(count, queue, client).result(WAIT_SECONDS)
        return json.decode(m.QueueLeaseResponse, leased.as_json(reply)).items

    def begin_lease(self, count: int = 1, queue: str = "q", client: str = "me", timeout: str = "1m") -> Future:
        request = m.QueueLeaseRequest(queue_name=queue, batch_size=count, client_id=client, request_timeout=timeout)
        return self.begin("queue.lease", request)

    def complete(self, *ids: str, queue: str = "q") -> Future:
        return self.begin(
            "queue.complete", m.QueueCompleteRequest(queue_name=queue, request_timeout="1m", ids=list(ids))
        )

    def ask(self, what: str, *numbers: int, queue: str = "q", **more: Any) -> m.Reply:
        """Calls partitions.resume, or another verb that changes states."""
        kind = _REQUESTS.get(what, m.PartitionsRequest)
        reply = self.call(f"partitions.{what}", kind(queue_name=queue, partitions=list(numbers), **more))
        assert isinstance(reply, m.Reply)
        return reply

    def refused(self, what: str, *numbers: int, queue: str = "q", **more: Any) -> QueratorError:
        kind = _REQUESTS.get(what, m.PartitionsRequest)
        return self.refusal(f"partitions.{what}", kind(queue_name=queue, partitions=list(numbers), **more))

    def flush(self, queue: str = "q") -> None:
        """Applies what was written to the files that are open, after other work of these partitions."""
        logical = self.registry.logicals[queue]
        for partition in logical.partitions:
            if partition.store is not None:
                self.run(at_store(logical, partition, lambda store: store.flush()))

    # -- jobs

    def job(self, what: str, queue: str = "q", **fields: Any) -> m.Job:
        """Starts a job with partitions.migrate or another verb, and waits for its end."""
        return self.ended(self.begin_job(what, queue, **fields))

    def begin_job(self, what: str, queue: str = "q", **fields: Any) -> str:
        kinds: dict[str, Any] = {
            "migrate": m.PartitionsMigrateRequest,
            "backup": m.PartitionsBackupRequest,
            "restore": m.PartitionsRestoreRequest,
        }
        kind = kinds.get(what, m.PartitionsRequest)
        job_id: str = self.call(f"partitions.{what}", kind(queue_name=queue, **fields)).job_id
        return job_id

    def job_refusal(self, what: str, queue: str = "q", **fields: Any) -> QueratorError:
        error = None
        try:
            self.begin_job(what, queue, **fields)
        except QueratorError as raised:
            error = raised
        assert error is not None, "it was not refused"
        return error

    def show_job(self, job_id: str) -> m.Job:
        job: m.Job = self.call("jobs.show", m.JobRequest(job_id=job_id))
        return job

    def ended(self, job_id: str) -> m.Job:
        self.until(lambda: self.show_job(job_id).state != "running")
        return self.show_job(job_id)

    def cancel(self, job_id: str) -> None:
        self.call("jobs.cancel", m.JobRequest(job_id=job_id))

    # -- looking

    def logical(self, queue: str = "q") -> Logical:
        return self.registry.logicals[queue]

    def partition(self, number: int = 0, queue: str = "q") -> Partition:
        return self.logical(queue).partitions[number]

    def statuses(self, queue: str = "q") -> list[m.PartitionStatus]:
        return list(self.call("partitions.list", m.PartitionsListRequest(queue_name=queue)).items)

    def states(self, queue: str = "q") -> list[str]:
        return [status.state for status in self.statuses(queue)]

    def file(self, number: int = 0, queue: str = "q") -> Path:
        status = self.statuses(queue)[number]
        return self.directory / status.storage / status.file

    def stats(self, queue: str = "q") -> m.QueueLogicalStats:
        found: m.QueueLogicalStats = self.call("queue.stats", m.QueueStatsRequest(queue_name=queue)).logical_queues[0]
        return found

    def contents(self, queue: str = "q") -> list[str]:
        """The payloads of all stored items, partition by partition. Scheduled items are last."""
        found = []
        for number in range(len(self.logical(queue).partitions)):
            for kind in ("items", "scheduled"):
                request = m.StorageItemsListRequest(queue_name=queue, partition=number, limit=100_000)
                found += [item.payload.decode() for item in self.call(f"storage/{kind}.list", request).items]
        return found
