"""docs/security.md: its commands, on a daemon of their own, because the first token closes it to other pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from querator import Client
from querator.errors import Unauthorized
from tests.docs import page_runs
from tests.docs.conftest import Served
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "security.md"
SHELL = [block for block in blocks(PAGE) if block.language == "sh"]


def test_the_first_set_up_is_five_commands() -> None:
    first = SHELL[0]
    assert len([line for line in first.text.splitlines() if line.strip()]) == 5


def test_the_page_does_what_it_says(tmp_path: Path, home: Path) -> None:
    with Served(home) as daemon:
        environment = page_runs.environment(home, QUERATOR_SOCKET=str(daemon.socket))
        wanted = [command for block in SHELL for command in page_runs.commands(block)]
        wanted = [command._replace(text=page_runs.free_address(daemon.http, command.text)) for command in wanted]
        for ran in page_runs.run(wanted, tmp_path, environment):
            assert ran.exit_code == 0, f"{ran.command.text}\n{ran.output}"
        with Client(f"unix:{daemon.socket}") as client:
            assert [token.name for token in client.list_tokens()] == ["ops"]
            assert client.queue_info("mail").queue_name == "mail"
        for token in ("", (tmp_path / "mailer.token").read_text().strip()):
            with Client(f"http://{daemon.http}", token=token) as client, pytest.raises(Unauthorized):
                client.produce("mail", ["x"])
        with Client(f"http://{daemon.http}", token=(tmp_path / "ops.token").read_text().strip()) as client:
            assert client.stats("mail").logical_queues[0].partitions[0].total == 1
