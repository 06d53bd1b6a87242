"""Runs every command and snippet of README and docs/. A page is one test, because its blocks build on each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from querator import config
from tests import ROOT
from tests.docs import page_runs
from tests.docs.conftest import Served, free_port
from tests.docs.pages import INDENTED, PAGES, Block, blocks

NOT_CODE = {"text", "json", "http", "xml", "mermaid"}
CHECKED_APART = {"toml", "go", "ini", "cron", "sql"}
ALL = [block for page in PAGES for block in blocks(page)]
PLAIN = re.compile(r"^(make|python -m bench|\.venv/bin/python -m bench)\b")
"""Commands that are checked but not run, because they take minutes or run these tests."""


def runnable(block: Block) -> bool:
    return block.language in (*page_runs.SHELL, "python") and not block.excuse and not plain(block)


def plain(block: Block) -> bool:
    lines = [line for line in _lines(block) if line]
    return block.language in page_runs.SHELL and bool(lines) and all(PLAIN.match(line) for line in lines)


def _lines(block: Block) -> list[str]:
    return [line.removeprefix("$ ").partition("  #")[0].strip() for line in block.text.splitlines()]


def of_language(*languages: str) -> list[object]:
    found = [block for block in ALL if block.language in languages]
    return [pytest.param(block, id=block.place) for block in found]


@pytest.mark.timeout(page_runs.PAGE_SECONDS_MAX + 60)
@pytest.mark.parametrize("page", [page for page in PAGES if any(map(runnable, blocks(page)))], ids=str)
def test_a_page_does_what_it_says(page: Path, served: Served, home: Path, tmp_path: Path):
    """A page that starts a daemon uses that one. The other pages use the daemon that they share."""
    wanted = [command for block in filter(runnable, blocks(page)) for command in page_runs.commands(block)]
    if any("querator daemon run" in command.text for command in wanted):
        http, more = f"localhost:{free_port()}", {}
    else:
        served.empty()
        http, more = served.http, {"QUERATOR_SOCKET": str(served.socket), "QUERATOR_CONFIG": str(served.config)}
    wanted = [command._replace(text=page_runs.free_address(http, command.text)) for command in wanted]
    for ran in page_runs.run(wanted, tmp_path, page_runs.environment(home, **more)):
        shown = f"{ran.command.block.place}\n$ {ran.command.text}\n{ran.output}"
        assert ran.exit_code is not None, f"the page ended here: {shown}"
        assert ran.exit_code == 0 or ran.command.may_fail, f"exit code {ran.exit_code}: {shown}"
        if ran.command.expected:
            assert page_runs.same(ran.command.expected, ran.output), f"shows something else: {shown}"


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in ALL if plain(block)])
def test_commands_that_take_minutes_are_spelled_right(block: Block):
    lines = [line.split() for line in _lines(block) if line]
    targets = [word for words in lines for word in words[1:] if words[0] == "make"]
    if targets:
        subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, capture_output=True)
    for words in lines:
        if words[0] == "make":
            continue
        module = words[words.index("-m") + 1]
        told = subprocess.run(
            [sys.executable, "-m", module, "--help"], cwd=ROOT, check=True, capture_output=True, text=True
        )
        assert all(word in told.stdout for word in words if word.startswith("--"))


@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in ALL])
def test_no_block_is_left_out(block: Block):
    """Every block is run, checked in another way, or preceded by a comment that says why not."""
    known = runnable(block) or plain(block) or block.language in NOT_CODE | CHECKED_APART or bool(block.excuse)
    assert known, f"nobody runs this block of language '{block.language}'"
    if block.excuse.startswith("run by "):
        assert (ROOT / block.excuse.split()[2]).exists()
    assert block.language != INDENTED or plain(block) or block.excuse, "indented blocks are for make and bench commands"


@pytest.mark.parametrize("block", of_language("toml"))
def test_configuration_in_the_docs_is_understood(block: Block, tmp_path: Path):
    tomllib.loads(block.text)
    path = tmp_path / "querator.toml"
    path.write_text(block.text)
    config.daemon_config(config=path, environ={"HOME": str(tmp_path)})


@pytest.mark.parametrize("block", of_language("go"))
def test_go_examples_run(block: Block, served: Served, tmp_path: Path):
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go on this machine; apt-get install golang-go")
    served.empty()
    served.client.create_queue("mail")
    served.client.produce("mail", ["from the test"])
    (tmp_path / "main.go").write_text(page_runs.free_address(served.http, block.text))
    # Nearly all of the time goes into compiling Go's own library. So the user's cache keeps it for all clones, no C is
    # compiled, and nothing is optimised.
    kept = subprocess.run([go, "env", "GOCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    cache = {"GOCACHE": kept, "GOPATH": str(tmp_path / "go"), "CGO_ENABLED": "0"}
    done = subprocess.run(
        [go, "run", "-gcflags=all=-N -l", "main.go"],
        cwd=tmp_path,
        env=page_runs.environment(tmp_path, **cache),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "from the test" in done.stdout
    assert served.client.list_items("mail") == []
