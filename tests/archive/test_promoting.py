"""`querator daemon promote`, as an operator uses it in a hurry: early, again, and from two terminals at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from querator.daemon.archive import Promotion
from querator.daemon.lock import holder
from querator.daemon.service import Service
from tests.archive.test_standby import followed, follower
from tests.daemons import QUERATOR, Daemon, clean_environment, querator
from tests.maintenance.house import House
from tests.waiting import until


async def _promote_twice(service: Service) -> None:
    service.archive.promote()
    service.archive.promote()


def test_of_two_promotions_of_a_standby_one_makes_it_serve(
    live: House, standby: House, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed(live, standby)
    promote, calls = follower(standby).promote, []

    def counted(force: bool) -> Promotion:
        calls.append(force)
        return promote(force)  # type: ignore[no-any-return]

    monkeypatch.setattr(follower(standby), "promote", counted)
    standby.run(_promote_twice(standby.service))
    standby.until(lambda: standby.service.archive.notes()[0].startswith("archive "))
    standby.registry = standby.service.registry
    standby.produce("3")
    standby.run(standby.service.archive.standing_by._promoting.acquire())  # type: ignore[union-attr]
    assert sorted(standby.contents()) == ["1", "2", "3"]
    assert len(calls) == 1
    assert [record.message for record in caplog.records].count("standby takes over") == 1
    assert "cannot serve" not in caplog.text


def test_a_refused_promotion_is_repeated_by_force_from_two_terminals_at_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    for name in ("owner", "standby"):
        (tmp_path / name).mkdir()
    with Daemon(tmp_path / "owner", "--archive", url) as owner:
        owner.client.create_queue("q")
        assert owner.stop() == 0
    with Daemon(tmp_path / "standby", "--archive", url, "--standby") as standby:
        words = ["daemon", "promote", "--data", str(standby.data)]
        done = querator(tmp_path, *words, "--timeout", "1s")
        assert done.returncode == 1 and "--force takes over anyway" in done.stderr
        assert "waiting until the standby has compared its clock" in done.stderr
        commands = [
            subprocess.Popen(
                [*QUERATOR, *words, "--force"], env=clean_environment(tmp_path), stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for command in commands:
            _, errors = command.communicate(timeout=120)
            assert command.returncode == 0 or "is not a standby" in errors, errors
        assert 0 in [command.returncode for command in commands]
        assert standby.client.list_queues()


def test_a_standby_that_never_starts_is_waited_for_as_long_as_was_said(tmp_path: Path) -> None:
    done = querator(tmp_path, "daemon", "promote", "--data", str(tmp_path / "nothing"), "--timeout", "200ms")
    assert done.returncode == 6 and "no daemon runs on" in done.stderr
    assert "waiting for a standby" in done.stderr
    url = f"file://{tmp_path / 'archive'}"
    words = [*QUERATOR, "daemon", "run", "--standby", "--archive", url, "--data", str(tmp_path / "second")]
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(words, env=clean_environment(tmp_path), stderr=log)
    try:
        until(lambda: holder(tmp_path / "second") is not None)
        done = querator(tmp_path, "daemon", "promote", "--data", str(tmp_path / "second"), "--timeout", "1s")
        assert done.returncode == 7 and "waits until its archive can be read" in done.stderr
    finally:
        process.kill()
        process.wait()
