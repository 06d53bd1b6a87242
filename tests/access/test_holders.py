"""A lease keeps the name of the token that took it: in lists, in SQL, and through a crash and a restart."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from querator import Client
from tests.access.guarded import MINE, Guarded
from tests.daemons import querator


@pytest.mark.parametrize("way", ["killed", "stopped", "reloaded"])
def test_a_lease_keeps_the_name_of_its_token(tmp_path: Path, way: str) -> None:
    with Guarded(tmp_path) as daemon:
        daemon.client.produce(MINE, ["a", "b", "c"])
        with Client(f"http://{daemon.http}", token=daemon.tokens["consumer"]) as consumer:
            consumer.lease(MINE, 1, client_id="worker")
            (item,) = consumer.lease(MINE, 1, client_id="worker").items
        daemon.client.lease(MINE, 1, client_id="worker")
        if way == "reloaded":
            daemon.client.reload_partitions(MINE)
        else:
            daemon.restart(signal.SIGKILL if way == "killed" else signal.SIGTERM)
        body = {"queue_name": MINE, "extended": True}
        listed = daemon.admin("/v1/storage/items.list", body)["items"]
        assert [(one["client_id"], one.get("token_name")) for one in listed] == [
            ("worker", "consumer-all"),
            ("worker", "consumer-all"),
            ("worker", None),
        ]
        shown = daemon.admin("/v1/items.inspect", {"queue_name": MINE, "id": item.id})["item"]
        assert (shown["token_name"], "leased_at" in shown, "lease_deadline" in shown) == ("consumer-all", True, True)
        # Clients of the original service refuse fields that they do not know.
        assert "token_name" not in json.dumps(daemon.admin("/v1/storage/items.list", {"queue_name": MINE}))
        for table in ("items", "leases"):
            query = f"select token_name, count(*) as n from {table} group by 1 order by 1 nulls last"
            assert daemon.admin_rows(MINE, query) == [
                {"token_name": "consumer-all", "n": 2},
                {"token_name": None, "n": 1},
            ]
        words = ("queue", "leases", MINE, "--socket", str(daemon.socket), "-o", "json")
        found = json.loads(querator(tmp_path, *words).stdout)
        assert [(one["client_id"], one["token_name"], one["leased"]) for one in found] == [
            ("worker", "consumer-all", 2),
            ("worker", None, 1),
        ]


def test_the_name_survives_a_backup_and_a_restore(tmp_path: Path) -> None:
    with Guarded(tmp_path) as daemon:
        daemon.client.produce(MINE, ["a"])
        with Client(f"http://{daemon.http}", token=daemon.tokens["consumer"]) as consumer:
            consumer.lease(MINE, 1, client_id="worker")
        words = ("--wait", "--socket", str(daemon.socket))
        for verb in (("backup", MINE, "--to"), ("restore", "copy", "--from")):
            done = querator(tmp_path, "partitions", *verb, str(tmp_path / "backup"), *words)
            assert done.returncode == 0, done.stderr
        listed = daemon.admin("/v1/storage/items.list", {"queue_name": "copy", "extended": True})["items"]
        assert [one["token_name"] for one in listed] == ["consumer-all"]
