"""The answers and their order do not depend on how the requests are split into reads."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from querator.clock import SystemClock
from querator.config import AccessConfig
from querator.daemon.access import Access
from querator.daemon.http import asgi, routes
from querator.daemon.http.dispatch import Calls
from querator.daemon.http.gate import Gate
from querator.daemon.http.protocol import QueratorProtocol
from querator.daemon.metrics import Metrics
from tests.transport.front import StandIn, chunked, produce, request

TURNS_MAX = 10_000


class MemoryTransport(asyncio.Transport):
    """A transport whose other side is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_reading_now = True
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.is_closed = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading_now = False

    def resume_reading(self) -> None:
        self.is_reading_now = True

    def statuses(self) -> list[int]:
        found, at = [], 0
        while match := re.compile(rb"HTTP/1\.1 (\d+) [^\r]*\r\n(?:[^\r]+\r\n)*\r\n").match(self.written, at):
            length = re.search(rb"\r\ncontent-length: (\d+)\r\n", match.group())
            assert length is not None
            at = match.end() + int(length[1])
            found.append(int(match[1]))
        return found


def connection(gate: Gate, app: Any) -> QueratorProtocol:
    config = uvicorn.Config(
        app, http=QueratorProtocol.behind(gate), interface="asgi3", ws="none", lifespan="off", log_config=None,
        log_level="warning", access_log=False, proxy_headers=False,
    )  # fmt: skip
    config.load()
    protocol: Any = config.http_protocol_class
    made: QueratorProtocol = protocol(
        config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    return made


KINDS = (
    (produce(), 200),
    (produce("later"), 200),
    (produce("bad"), 400),
    (produce("boom"), 500),
    (produce("q", "X-Other: head"), 200),
    (request("/v1/queue.lease", b'{"queue_name": "large", "batch_size": 90000}'), 200),
    (request("/v1/queue.produce", b"{"), 455),
    (request("/v1/queue.produce", b'{"queue_name": "q"}'.ljust(70_000)), 200),
    (request("/v1/queue.produce", chunked(b'{"queue_name"', b': "bad"}'), "Transfer-Encoding: chunked"), 400),
    (request("/v1/queues.info", b'{"queue_name": "later"}'), 200),
    (request("/v1/nope", b"\r\n\r\nPOST / HTTP/1.1\r\n\r\n"), 501),
    (request("/health", b"", method="GET"), 200),
    (request("/v1/queue.produce", b"{}", "Content-Length: 2", method="frob"), 400),
    (request("/v1/queue.stats", b"", "Content-Length: 0"), 455),
)


@pytest.mark.parametrize("seed", range(60))
def test_any_cut_gives_the_same_answers(seed: int) -> None:
    chance = random.Random(seed)
    sent = [chance.choice(KINDS) for _ in range(chance.randint(1, 40))]
    data = b"".join(one for one, _ in sent)
    most = chance.choice([1, 3, 40, 400, 5_000, 300_000])

    async def run() -> list[int]:
        service = StandIn()
        metrics = Metrics(dict, lambda: 0)
        calls = Calls(
            service, routes.routes_by_path(), metrics.http, Access(AccessConfig(), SystemClock(), Path("/nonexistent"))
        )
        protocol, wire = connection(Gate(calls), asgi.application(calls, metrics)), MemoryTransport()
        protocol.connection_made(wire)
        at = turns = 0
        while at < len(data) and turns < TURNS_MAX:
            if wire.is_reading_now:
                # Single bytes are rare, because long bodies would take too long.
                size = chance.randint(1, most if chance.random() < 0.9 else 20_000)
                protocol.data_received(data[at : at + size])
                at += size
            if not wire.is_reading_now or chance.random() < 0.3:
                turns += 1
                await asyncio.sleep(0)
        for _ in range(TURNS_MAX):
            if len(wire.statuses()) == len(sent):
                break
            await asyncio.sleep(0)
        assert not wire.is_closed
        protocol.connection_lost(None)
        return wire.statuses()

    assert asyncio.run(run()) == [status for _, status in sent]


@pytest.mark.parametrize("seed", range(60))
def test_no_bytes_can_make_it_stumble(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged stream ends in answers, silence or a closed connection, and never in an exception."""
    chance = random.Random(1_000 + seed)

    async def run() -> None:
        service = StandIn()
        metrics = Metrics(dict, lambda: 0)
        calls = Calls(
            service, routes.routes_by_path(), metrics.http, Access(AccessConfig(), SystemClock(), Path("/nonexistent"))
        )
        gate, app = Gate(calls), asgi.application(calls, metrics)
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        for _ in range(20):
            data = bytearray(b"".join(chance.choice(SMALL_KINDS)[0] for _ in range(chance.randint(1, 8))))
            for _ in range(chance.randint(0, 6)):
                at = chance.randrange(len(data))
                damage = chance.choice(
                    [b"", b"\r\n", b"\n", b"\r\n\r\n", b"\x00", b"0\r\n\r\n", b"POST ", b":", b"9", b"%"]
                )
                data[at : at + chance.randint(0, 3)] = damage
            protocol, wire = connection(gate, app), MemoryTransport()
            protocol.connection_made(wire)
            at = 0
            while at < len(data):
                size = chance.randint(1, 2_000)
                protocol.data_received(bytes(data[at : at + size]))
                at += size
                for _ in range(chance.randint(0, 12)):
                    await asyncio.sleep(0)
            if chance.random() < 0.5:
                protocol.eof_received()
            if chance.random() < 0.2:
                protocol.shutdown()
            protocol.connection_lost(None)
            for _ in range(12):
                await asyncio.sleep(0)
        assert failures == []
        assert [r for r in caplog.records if r.name == "uvicorn.error" or r.message == "request failed"] == []

    asyncio.run(run())


SMALL_KINDS = [kind for kind in KINDS if len(kind[0]) < 1_000]
