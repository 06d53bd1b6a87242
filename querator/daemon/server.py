"""The composition root: starts the data directory, sockets, service and HTTP, and stops them on a signal.

The daemon stops in the order of the wire contract. First, waiting clients are answered and everything is made durable.
The sockets still answer meanwhile: health reports the stop, and new calls are refused. Then the connections end.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import platform
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
import uvloop

from querator import __version__, build, limits
from querator.clock import Clock, ManualClock, SetBackClock, SystemClock
from querator.config import DaemonConfig, check_archive_place, check_tls
from querator.daemon import allocators, hangups, logs, unneeded
from querator.daemon.archive import StoppedEarly, clock_behind_us
from querator.daemon.bulk import bulk_routes
from querator.daemon.console import console_routes
from querator.daemon.http import Calls, Gate, Listeners, QueratorProtocol, application, routes_by_path
from querator.daemon.lock import DataLock, Holder
from querator.daemon.metrics import Metrics
from querator.daemon.service import Service
from querator.daemon.tls import ServerTls
from querator.errors import QueratorError

log = logging.getLogger("querator.daemon")

SERVICE_STOP_SECONDS: Final = limits.SHUTDOWN_SECONDS_MAX - limits.CONNECTIONS_END_SECONDS - 1


def run(config: DaemonConfig) -> None:
    """Runs until SIGTERM or SIGINT, or until its terminal is closed. Raises QueratorError if it cannot start."""
    ends_with_terminal = hangups.ends_with_terminal()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the loop handles it
    os.umask(0o077)
    allocators.use_one_allocator()
    logs.configure(config.log_level, config.log_format, file=config.log_file)
    check_tls(config)
    check_archive_place(config)
    tls = ServerTls(config.tls) if config.tls is not None else None
    lock = DataLock.acquire(config.data)
    listeners = Listeners()
    try:
        listeners.listen_unix(config.socket, config.access.socket_group)
        http = listeners.listen_tcp(config.http) if config.http is not None else []
        lock.describe(
            Holder(
                pid=os.getpid(),
                version=__version__,
                started_at=time.time_ns() // limits.NS_PER_US,
                socket=str(config.socket),
                http=http,
                insecure=config.access.insecure,
            )
        )
        _raise_open_files_limit()
        with unneeded.kept_out(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            failure = runner.run(_serve(config, listeners.sockets, http, tls, ends_with_terminal))
        if failure is not None:
            raise failure
    finally:
        gc.unfreeze()
        listeners.close()
        lock.release()


def _clock(config: DaemonConfig) -> Clock:
    behind_us = clock_behind_us(config.data)
    if config.test_clock:
        return ManualClock()
    return SetBackClock(behind_us) if config.standby or behind_us else SystemClock()


def _slew(loop: asyncio.AbstractEventLoop, clock: SetBackClock) -> None:
    """Lets a clock that was set back catch up, so slowly that leases hardly notice."""
    clock.behind_us = max(0, clock.behind_us - limits.CLOCK_SLEW_US_PER_SECOND)
    loop.call_later(1.0, _slew, loop, clock)


def _archive_role(config: DaemonConfig, service: Service) -> str:
    if config.archive is None:
        return "off"
    if config.standby:
        return f"standby of {config.archive.url}"
    shipper = service.registry.shipper
    if shipper is None or not shipper.ledger.epoch:
        return f"{config.archive.url}, which cannot be reached and is not ours yet"
    return f"owner of {config.archive.url}"


async def _serve(
    config: DaemonConfig,
    sockets: list[socket.socket],
    http: list[str],
    tls: ServerTls | None,
    ends_with_terminal: bool,
) -> QueratorError | None:
    """Serves until it is asked to stop. Returns why it had to stop by itself, or None."""
    started = time.monotonic()
    service = Service(config, clock := _clock(config))
    server = DaemonServer(config, service, clock, tls)
    service.lost_archive = server.give_up
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop_soon, signal.Signals(number).name)
    loop.add_signal_handler(signal.SIGUSR1, service.archive.promote)
    loop.add_signal_handler(signal.SIGUSR2, service.archive.promote, True)
    loop.add_signal_handler(signal.SIGHUP, server.hang_up, ends_with_terminal)
    if isinstance(clock, SetBackClock):
        _slew(loop, clock)
    try:
        await service.start(http)
    except QueratorError:
        raise
    except StoppedEarly:
        log.info("querator stopped")
        return None
    except Exception:
        log.exception("the daemon could not start")
        raise
    settle_garbage_collector()
    for source in build.stale_sources():
        log.warning("a source is newer than its compiled module, which runs", extra={"source": str(source)})
    log.info(
        "querator %s started",
        __version__,
        extra={
            "pid": os.getpid(),
            "data": str(config.data),
            "socket": str(config.socket),
            "http": ",".join(http) or "off",
            "archive": _archive_role(config, service),
            "tls": "off" if tls is None else f"certificate for {tls.days_left:.1f} days",
            "python": platform.python_version(),
            "build": build.name(),
            "seconds": round(time.monotonic() - started, 3),
        },
    )
    await server.serve(sockets=sockets)
    log.info("querator stopped")
    return server.failure


class DaemonServer(uvicorn.Server):
    """uvicorn's server with our protocol, app and service."""

    def __init__(self, config: DaemonConfig, service: Service, clock: Clock, tls: ServerTls | None = None) -> None:
        expires_at = None if tls is None else lambda: tls.validity.ends_at
        metrics = Metrics(service.statistics, clock.now_us, service.rooms, expires_at, service.archive.lag)
        calls = Calls(service, routes_by_path(test_clock=config.test_clock), metrics.http, service.registry.access)
        routes = [*bulk_routes(calls, service.registry), *console_routes(calls.access)]
        super().__init__(
            uvicorn.Config(
                application(calls, metrics, routes, tls=tls),
                http=QueratorProtocol.behind(Gate(calls, _tcp_connections_max())),
                interface="asgi3",
                loop="none",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=limits.LISTEN_BACKLOG,
                timeout_keep_alive=config.limits.keep_alive_seconds,
                timeout_graceful_shutdown=limits.CONNECTIONS_END_SECONDS,
            )
        )
        self._service = service
        self.failure: QueratorError | None = None
        """Why the daemon had to stop by itself."""
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections: with TLS on TCP if there is a certificate, and without it on the Unix socket."""
        loop = asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            return self.config.http_protocol_class(config=self.config, server_state=self.server_state, app_state={})  # type: ignore[call-arg]

        self.servers = []
        for listener in sockets or ():
            tls: dict[str, Any] = {}
            if self._tls is not None and listener.family != socket.AF_UNIX:
                tls = {"ssl": self._tls.context, "ssl_handshake_timeout": limits.TLS_HANDSHAKE_SECONDS_MAX}
            self.servers.append(
                await loop.create_server(connection, sock=listener, backlog=limits.LISTEN_BACKLOG, **tls)
            )
        self.started = True
        if self._tls is not None:
            self._watch_certificate(loop, self._tls)

    def _watch_certificate(self, loop: asyncio.AbstractEventLoop, tls: ServerTls) -> None:
        tls.renew_if_changed()
        loop.call_later(limits.TLS_FILES_CHECK_SECONDS, self._watch_certificate, loop, tls)

    def stop_soon(self, reason: str) -> None:
        """Asks the server to stop. A second call makes it stop waiting for clients."""
        if self.should_exit:
            self.force_exit = True
            return
        log.info("querator is stopping", extra={"reason": reason})
        self.should_exit = True
        self._service.archive.stop_waiting()
        _exit_in_any_case()

    def give_up(self, error: QueratorError) -> None:
        """Stops the daemon, because it lost the archive, usually to another daemon, and may acknowledge nothing any
        more.
        """
        self.failure = error
        if not self.should_exit:
            self.stop_soon(error.message)

    def hang_up(self, ends_with_terminal: bool) -> None:
        """Handles SIGHUP: stops if the daemon's terminal was closed, else reopens the log file and renews the TLS
        certificate."""
        if ends_with_terminal and hangups.is_gone():
            if not self.should_exit:
                self.stop_soon("the terminal was closed")
        else:
            logs.reopen()
            if self._tls is not None:
                self._tls.renew()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Keeps our own signal handlers: uvicorn's would re-raise the signal after an orderly stop."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await asyncio.wait_for(self._service.stop(), SERVICE_STOP_SECONDS)
        except TimeoutError:
            log.error("the service did not stop in time", extra={"seconds": SERVICE_STOP_SECONDS})
        except Exception:
            log.exception("the service failed to stop")
        await super().shutdown(sockets)


def _exit_in_any_case() -> None:
    """Ends the process if the stop hangs, for example on a dead disk. Everything acknowledged is durable."""

    def exit_now() -> None:
        log.critical("the daemon did not stop in time and is ended", extra={"seconds": limits.SHUTDOWN_SECONDS_MAX})
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(limits.SHUTDOWN_SECONDS_MAX - 0.5, exit_now)
    timer.daemon = True
    timer.start()


def settle_garbage_collector() -> None:
    """Excludes existing objects from collection, and collects rarely, because requests hardly ever make cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _tcp_connections_max() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.TCP_CONNECTIONS_MAX
    return min(limits.TCP_CONNECTIONS_MAX, int(files * limits.TCP_CONNECTIONS_FILES_SHARE))


def _raise_open_files_limit() -> None:
    """Each connection is an open file, and ten thousand clients may wait at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
