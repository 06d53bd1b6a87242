"""A standby is killed at a random moment of its promotion. With `wait = true`, the next daemon has everything."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

from tests.archive.object_stores import S3
from tests.daemons import Daemon, querator
from tests.waiting import until

ROUNDS = int(os.environ.get("QUERATOR_ROUNDS", "2"))
ITEMS = 40
PROMOTION_SECONDS = 0.3
"""About how long a promotion takes. The standby is killed within this time."""


def test_a_standby_that_is_killed_in_its_promotion_loses_nothing(tmp_path: Path, s3: S3) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(ROUNDS):
        _lose_the_standby(tmp_path / str(number), s3, chance.uniform(0, PROMOTION_SECONDS))


def _lose_the_standby(directory: Path, s3: S3, seconds: float) -> None:
    url, options = s3.archive()
    (directory / "owner").mkdir(parents=True)
    (directory / "standby").mkdir()
    config = directory / "config.toml"
    lines = [f'{name} = "{value}"' for name, value in options.items()]
    settings = [f'url = "{url}"', "wait = true", 'interval = "20ms"', 'heartbeat = "200ms"']
    config.write_text("\n".join(["[archive]", *settings, "[archive.options]", *lines]))
    with (
        Daemon(directory / "owner", "--config", str(config)) as owner,
        Daemon(directory / "standby", "--config", str(config), "--standby") as standby,
    ):
        owner.client.create_queue("q")
        until(lambda: "compared" not in standby.client.health()["archive"][0])
        for item in range(ITEMS):
            owner.client.produce("q", f"{item}")
        standby.process.send_signal(signal.SIGUSR1)
        killed = threading.Timer(seconds, standby.process.kill)
        killed.start()
        killed.join()
        standby.process.wait()
        owner.kill()
        words = ["--config", str(config)]
        with Daemon(directory / "standby", *words, may_fail=True, log="next.log") as next_one:
            is_owner = next_one.process.poll() is None
            print(f"killed after {seconds:.3f} s; it owned the archive: {is_owner}")
            if is_owner:
                _check(next_one)
                return
            assert next_one.exit_code == 8, next_one.output
        with Daemon(directory / "standby", *words, "--standby", log="again.log") as again:
            done = querator(directory, "daemon", "promote", "--data", str(again.data), "--force")
            assert done.returncode == 0, done.stderr + again.output
            _check(again)


def _check(daemon: Daemon) -> None:
    daemon.client.produce("q", "after")
    there = sorted(item.payload for item in daemon.client.list_items("q", limit=1_000))
    assert there == sorted([*(b"%d" % item for item in range(ITEMS)), b"after"])
