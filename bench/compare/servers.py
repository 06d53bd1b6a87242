"""Starts and stops the systems: each on loopback, with its data in a temporary directory, and stopped by process id.

`version()` is empty for a peer that is not installed. The settings are those of a careful user who must never lose an
acknowledged item. All other settings are the defaults of the package.
"""

from __future__ import annotations

import abc
import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.compare import measure, wire_postgres, wire_rabbitmq, wire_redis
from bench.compare.wire import Address, PeerError, connect

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 10.0


class Server(abc.ABC):
    """A peer that can be started once. `addresses` are those on which it listens: `tcp` and perhaps `unix`."""

    peer: str
    settings: str

    def __init__(self, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.environment = environment or {}
        self.addresses: dict[str, Address] = {}
        self.pid = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    @classmethod
    @abc.abstractmethod
    def version(cls) -> str:
        """The installed version, or an empty text."""

    @abc.abstractmethod
    def start(self) -> None:
        """Starts the peer. Returns when it answers and its queue exists."""

    def pause(self) -> None:
        """Pauses the peer while others are measured, so that its background work runs only in its own rounds."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the processes that this object started, by their ids."""
        self.resume()
        for process in reversed(self._processes):
            if process.poll() is not None:
                continue
            tree = measure.process_tree(process.pid)
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                for pid in tree:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is not None:
                # Another process may have this id by now.
                continue
            for pid in measure.process_tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def __enter__(self) -> Server:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _spawn(self, command: list[str], *, user: str | None = None, environment: dict[str, str] | None = None) -> None:
        log = (self.directory / "log").open("ab")
        process = subprocess.Popen(
            command,
            cwd=self.directory,
            env={**os.environ, **self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=user,
        )
        log.close()
        self._processes.append(process)
        self.pid = process.pid

    def _wait_for(self, probe: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                probe()
                return
            except (OSError, PeerError) as error:
                ended = self._processes[-1].poll()
                if ended is not None or time.monotonic() > deadline:
                    log = (self.directory / "log").read_text(errors="replace")[-2000:]
                    raise PeerError(f"{self.peer} did not start ({ended=}): {error}\n{log}") from error
            time.sleep(0.02)


class Redis(Server):
    peer = "redis"
    settings = 'streams; appendonly yes, appendfsync always, save ""; XACK and XDEL in one write'

    @classmethod
    def version(cls) -> str:
        return _first_line("redis-server", "--version").partition("v=")[2].partition(" ")[0]

    def start(self) -> None:
        port, path = free_port(), str(self.directory / "redis.sock")
        options = ["--port", str(port), "--bind", "127.0.0.1", "--unixsocket", path, "--dir", str(self.directory)]
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        self._spawn(["redis-server", *options, *durable])
        self.addresses = {"tcp": Address(port=port), "unix": Address(path=path)}
        self._wait_for(lambda: wire_redis.create_group(self.addresses["unix"]))


class Beanstalkd(Server):
    peer = "beanstalkd"
    settings = "binlog with -f0; a batch is as many commands in one write; leases are not durable"

    @classmethod
    def version(cls) -> str:
        return _first_line("beanstalkd", "-v").partition(" ")[2]

    def start(self) -> None:
        port = free_port()
        self._spawn(["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(self.directory), "-f0"])
        self.addresses = {"tcp": Address(port=port)}
        self._wait_for(lambda: connect(self.addresses["tcp"]).close())


class Postgres(Server):
    peer = "postgres"
    settings = (
        "lease = UPDATE ... FOR UPDATE SKIP LOCKED, complete = DELETE; fsync and synchronous_commit on, "
        "shared_buffers 512MB, max_wal_size 8GB, autovacuum from 50,000 dead rows, naptime 5s"
    )

    @classmethod
    def version(cls) -> str:
        program = _postgres_program("postgres")
        return _first_line(program, "--version").rpartition(") ")[2].partition(" ")[0] if program else ""

    def start(self) -> None:
        # PostgreSQL refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else None
        data, port = self.directory / "data", free_port()
        if user:
            shutil.chown(self.directory, user)
            self.directory.parent.chmod(0o711)
        initdb = [_postgres_program("initdb"), "-D", str(data), "-U", "bench", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(initdb, check=True, capture_output=True, user=user, cwd=self.directory)
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.directory),
            "max_connections": "64",
            "shared_buffers": "512MB",
            "max_wal_size": "8GB",
            "autovacuum_naptime": "5s",
            "fsync": "on",
            "synchronous_commit": "on",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [_postgres_program("postgres"), "-D", str(data), "-p", str(port), *options]
        self._spawn(command, user=user)
        self.addresses = {
            "tcp": Address(port=port),
            "unix": Address(path=str(self.directory / f".s.PGSQL.{port}")),
        }
        self._wait_for(lambda: wire_postgres.execute_simple(self.addresses["tcp"], wire_postgres.SCHEMA))


class RabbitMq(Server):
    peer = "rabbitmq"
    settings = "quorum queue on one node, persistent, publisher confirms, prefetch = batch, ack multiple"
    _PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    @classmethod
    def version(cls) -> str:
        if not cls._PROGRAM.exists():
            return ""
        return _first_line("dpkg-query", "--show", "--showformat=${Version}", "rabbitmq-server")

    def start(self) -> None:
        port, distribution_port, epmd_port = free_port(), free_port(), free_port()
        environment = {
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.directory / "logs"),
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
        }
        (self.directory / "enabled_plugins").write_text("[].\n")
        (self.directory / "rabbitmq.conf").write_text("log.file.level = warning\n")
        # RabbitMQ would start a name server that outlives it. We start one ourselves, so that we can stop it.
        epmd = subprocess.Popen(
            ["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], env={**os.environ, **environment}
        )
        self._processes.append(epmd)
        self._spawn([str(self._PROGRAM)], environment=environment)
        self.addresses = {"tcp": Address(port=port)}
        self._wait_for(lambda: wire_rabbitmq.declare_quorum_queue(self.addresses["tcp"]))


class Sqlite(Server):
    """SQLite has no server: the load process opens the file."""

    peer = "sqlite"
    settings = "in process, one thread per client, WAL, synchronous=full; CPU and memory are those of the load process"

    @classmethod
    def version(cls) -> str:
        return sqlite3.sqlite_version

    def start(self) -> None:
        self.addresses = {"file": Address(path=str(self.directory / "queue.sqlite"))}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def python_program(name: str) -> str:
    """The path of a command that is installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


def _postgres_program(name: str) -> str:
    """Debian installs the server's programs in one directory per version, outside the path."""
    found = [*sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda each: int(each.parts[-3]))]
    return str(found[-1]) if found else shutil.which(name) or ""


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    text = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    return text.strip().partition("\n")[0]
