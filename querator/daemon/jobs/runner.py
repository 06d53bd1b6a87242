"""Runs jobs: records them in the catalog, allows one per partition at a time, and resumes them after a restart.

Each kind of job has a module of its own. A job can start again from the beginning, whichever step the process was
killed at. The calls jobs.* are here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from querator import limits
from querator.daemon import logs
from querator.daemon.access import Caller, Right
from querator.daemon.admin import check_readable, chosen_partitions
from querator.daemon.queue import Logical
from querator.daemon.registry import CallsByCaller, Registry
from querator.daemon.store import StorageError
from querator.errors import Conflict, InvalidRequest, NotFound, QueratorError, RequestFailed
from querator.items import Job
from querator.limits import JOB_KEPT_US
from querator.wire import messages
from querator.wire.messages import Reply

log = logging.getLogger("querator.jobs")

RUNNING, DONE, FAILED, CANCELLED = "running", "done", "failed", "cancelled"


class Cancelled(Exception):
    """The job was cancelled, or the daemon stops. The job undoes its unfinished work if it can."""


class Kind(NamedTuple):
    run: Callable[[Registry, Job], Awaitable[None]]
    """Does the job, or the rest of it after a restart. May raise QueratorError, StorageError, OSError or Cancelled."""
    prepare: Callable[[Registry, Logical, Job], None] = lambda registry, logical, job: None
    """Called at the start, before partitions open: keeps partitions closed that the job needs closed."""


class Jobs:
    def __init__(self, registry: Registry, kinds: Mapping[str, Kind]) -> None:
        self._registry = registry
        self._kinds = kinds
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()

    # -- start and stop of the daemon

    async def load(self) -> None:
        self._jobs = {job.job_id: job for job in await self._registry.blocking(self._registry.catalog.jobs)}

    def prepare(self) -> None:
        """Called after the queues exist and before their partitions open."""
        for job in self.running():
            logical = self._registry.logicals.get(job.queue)
            if logical is not None and job.kind in self._kinds:
                self._kinds[job.kind].prepare(self._registry, logical, job)

    def resume(self) -> None:
        for job in self.running():
            log.info("job resumed", extra={"job": job.job_id, "kind": job.kind, "queue": job.queue})
            self._run(job)

    async def stop(self) -> None:
        """Waits until jobs reach a step from which the next start can resume them."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=limits.JOB_STOP_SECONDS_MAX)
        for task in list(self._tasks.values()):
            task.cancel()

    # -- jobs

    def all(self) -> list[Job]:
        return list(self._jobs.values())

    def running(self) -> list[Job]:
        return [job for job in self._jobs.values() if job.state == RUNNING]

    def on(self, queue: str, number: int) -> Job | None:
        """The job that works on a partition."""
        return next((job for job in self.running() if job.queue == queue and number in job.details["partitions"]), None)

    def check_free(self, queue: str, numbers: Iterable[int]) -> None:
        for number in numbers:
            job = self.on(queue, number)
            if job is not None:
                raise Conflict(
                    f"partition is busy; job '{job.job_id}' ({job.kind}) works on partition '{number}',"
                    " wait for its end or cancel it"
                )

    async def start(self, kind: str, queue: str, partitions: list[int], **details: Any) -> Job:
        """Records a job and starts it. Refuses if another job works on one of its partitions."""
        self.check_free(queue, partitions)
        self._registry.check_running()
        job = Job(
            job_id=secrets.token_hex(4),
            kind=kind,
            queue=queue,
            partition=partitions[0],
            created_at=self._registry.clock.now_us(),
            details={"partitions": partitions, **details},
        )
        # In memory first, so that the partitions count as busy while the job is saved.
        self._jobs[job.job_id] = job
        try:
            await self._forget_old()
            await self.save(job)
        except BaseException:
            del self._jobs[job.job_id]
            raise
        shown = {name: value for name, value in details.items() if isinstance(value, str | int)}
        logs.changed("job started", queue, partitions, {"job": job.job_id, "kind": kind, **shown})
        self._run(job)
        return job

    async def save(self, job: Job) -> None:
        await self._registry.blocking(self._registry.catalog.save_job, job)

    def check(self, job: Job) -> None:
        """Raises Cancelled if the job should end. Jobs call it, from any thread, where they can still undo their
        work."""
        if self._registry.stopping or job.job_id in self._cancelled:
            raise Cancelled

    def check_stopping(self) -> None:
        if self._registry.stopping:
            raise Cancelled

    async def cancel(self, job: Job) -> None:
        """Cancels a job, and returns when it has ended."""
        self._cancelled.add(job.job_id)
        task = self._tasks.get(job.job_id)
        if task is not None:
            await asyncio.wait([task])

    async def abandon(self, queue: str) -> None:
        """Cancels the jobs of a queue that is being deleted."""
        for job in self.running():
            if job.queue == queue:
                await self.cancel(job)

    def _run(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._work(job))
        self._tasks[job.job_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.job_id, None))

    async def _work(self, job: Job) -> None:
        state, reason = DONE, ""
        kind = self._kinds.get(job.kind)
        try:
            if kind is None or job.queue not in self._registry.logicals:
                raise RequestFailed(f"queue '{job.queue}' is gone")
            await kind.run(self._registry, job)
        except Cancelled:
            if job.job_id not in self._cancelled:
                return  # the daemon stops; the next start resumes the job
            state = CANCELLED
        except (QueratorError, StorageError, OSError) as error:
            if self._registry.stopping:
                return
            state, reason = FAILED, str(error)
        except Exception as error:
            log.exception("job failed", extra={"job": job.job_id})
            if self._registry.stopping:
                return
            state, reason = FAILED, f"internal error: {error}"
        job.state, job.reason = state, reason
        job.ended_at = self._registry.clock.now_us()
        extra = {"job": job.job_id, "kind": job.kind, "done": job.done, "total": job.total}
        if state == FAILED:
            log.error("job failed", extra={**extra, "queue": job.queue, "reason": reason})
        else:
            logs.changed(f"job {state}", job.queue, job.details["partitions"], extra)
        with contextlib.suppress(asyncio.CancelledError):
            await self.save(job)

    async def _forget_old(self) -> None:
        before = self._registry.clock.now_us() - JOB_KEPT_US
        old = [job.job_id for job in self._jobs.values() if job.state != RUNNING and job.ended_at < before]
        if old:
            await self._registry.blocking(self._registry.catalog.forget_jobs, old)
            for job_id in old:
                del self._jobs[job_id]
                self._cancelled.discard(job_id)

    def find(self, job_id: str, caller: Caller) -> Job:
        """A job that the caller may see. One of a queue that the caller may not see does not exist for the caller."""
        job = self._jobs.get(job_id)
        if job is None or not caller.may(Right.VIEW, job.queue):
            raise NotFound(f"job does not exist; no such job '{job_id}'")
        return job


# -- calls


async def start_on_files(
    registry: Registry, kind: str, request: messages.PartitionsRequest, verb: str
) -> messages.JobReply:
    """Starts a job on the partitions that a request names. Their files must be open."""
    logical = registry.find(request.queue_name)
    partitions = chosen_partitions(registry, logical, request.partitions)
    check_readable(verb, partitions)
    job = await registry.jobs.start(kind, logical.queue.name, [partition.number for partition in partitions])
    return messages.JobReply(job_id=job.job_id)


async def list_(registry: Registry, request: messages.JobsListRequest, caller: Caller) -> messages.JobsListResponse:
    shown = [job for job in registry.jobs.all() if caller.may(Right.VIEW, job.queue)]
    return messages.JobsListResponse(items=[_for_caller(job, caller) for job in shown])


async def show(registry: Registry, request: messages.JobRequest, caller: Caller) -> messages.Job:
    return _for_caller(registry.jobs.find(request.job_id, caller), caller)


async def cancel(registry: Registry, request: messages.JobRequest, caller: Caller) -> Reply:
    job = registry.jobs.find(request.job_id, caller)
    if job.state == RUNNING:
        await registry.jobs.cancel(job)
    if job.state != CANCELLED:
        raise InvalidRequest(f"cannot cancel job; job '{job.job_id}' is {job.state}, it can no longer be cancelled")
    return Reply(code=200)


def _for_caller(job: Job, caller: Caller) -> messages.Job:
    shown = describe(job)
    shown.reason = caller.readable(shown.reason)
    return shown


def describe(job: Job) -> messages.Job:
    return messages.Job(
        job_id=job.job_id,
        kind=job.kind,
        queue_name=job.queue,
        partition=job.partition,
        state=job.state,
        done=job.done,
        total=job.total,
        reason=job.reason,
        created_at=job.created_at,
        ended_at=job.ended_at or None,
    )


CALLS_BY_CALLER: CallsByCaller = {
    "jobs.list": list_,
    "jobs.show": show,
    "jobs.cancel": cancel,
}
