"""`doctor` tries the object store. A daemon refuses `wait` and `--standby` on a store that cannot decide its owner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.archive.object_stores import S3, FaultyProxy, Handler
from tests.daemons import Daemon, querator
from tests.waiting import until

Configure = Callable[[str], Path]


@pytest.fixture
def configure(tmp_path: Path, s3: S3, proxy: FaultyProxy) -> Configure:
    """Writes the configuration of an archive behind the proxy, where commands look for it."""
    url, options = s3.archive(proxy.endpoint)
    path = tmp_path / ".config" / "querator" / "config.toml"
    path.parent.mkdir(parents=True)

    def write(settings: str) -> Path:
        lines = [f'{name} = "{value}"' for name, value in options.items()]
        path.write_text("\n".join(["[archive]", f'url = "{url}"', settings, "[archive.options]", *lines]))
        return path

    return write


def ignore_conditions(handler: Handler, body: bytes) -> bool:
    """A store that accepts conditional puts and overwrites all the same."""
    del handler.headers["If-None-Match"]
    return False


def archive_line(home: Path) -> str:
    done = querator(home, "doctor", "--data", str(home / "data"))
    return next(line for line in done.stdout.splitlines() if " archive " in f" {line} ")


def test_doctor_tries_the_store(tmp_path: Path, configure: Configure, proxy: FaultyProxy) -> None:
    configure("")
    assert archive_line(tmp_path).startswith("ok")
    proxy.fault = ignore_conditions
    assert archive_line(tmp_path).startswith("fail") and "ignores conditional puts" in archive_line(tmp_path)
    proxy.fault = lambda handler, body: handler.refuse(403)
    assert archive_line(tmp_path).startswith("fail")
    assert "querator doctor" not in archive_line(tmp_path)
    proxy.fault = lambda handler, body: handler.hang_up()
    assert archive_line(tmp_path).startswith("fail") and "cannot be reached" in archive_line(tmp_path)


@pytest.mark.parametrize(("settings", "options"), [("wait = true", []), ("", ["--standby"])])
def test_a_store_that_ignores_conditional_puts_is_refused(
    tmp_path: Path, configure: Configure, proxy: FaultyProxy, settings: str, options: list[str]
) -> None:
    config = configure(settings)
    proxy.fault = ignore_conditions
    with Daemon(tmp_path, "--config", str(config), *options, may_fail=True) as daemon:
        assert daemon.exit_code != 0
        assert "ignores conditional puts" in daemon.output


def test_a_store_that_ignores_conditional_puts_can_still_be_a_copy(
    tmp_path: Path, configure: Configure, proxy: FaultyProxy
) -> None:
    config = configure("")
    proxy.fault = ignore_conditions
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.client.create_queue("q")
        until(lambda: ", object " in daemon.client.health()["archive"][0])
        assert "two daemons could own it" in daemon.output


def test_a_store_that_allows_no_deletes_can_still_be_a_copy(
    tmp_path: Path, configure: Configure, proxy: FaultyProxy
) -> None:
    config = configure("")

    def forbid_deletes(handler: Handler, body: bytes) -> bool:
        is_delete = handler.command == "DELETE" or (handler.command == "POST" and "delete" in handler.path)
        return is_delete and handler.refuse(403)

    proxy.fault = forbid_deletes
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.client.create_queue("q")
        until(lambda: ", object " in daemon.client.health()["archive"][0])


def test_a_daemon_that_waits_for_a_store_that_is_away_answers_454_and_can_be_stopped(
    tmp_path: Path, configure: Configure, proxy: FaultyProxy
) -> None:
    config = configure("wait = true")
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        daemon.client.create_queue("q")
        assert daemon.stop() == 0
        proxy.fault = lambda handler, body: handler.refuse()
        daemon.start()
        produce = {"queue_name": "q", "request_timeout": "20s", "items": [{"utf8": "x"}]}
        status, answer = daemon.call("/v1/queue.produce", produce)
        assert (status, "the archive does not have it yet" in answer["message"]) == (454, True)
        assert daemon.call("/health")[1]["status"] == "fail"
        assert daemon.stop() == 0
        proxy.fault = None
        daemon.start()
        daemon.client.produce("q", "y")
