"""The command line for tests: in this process, or in a process of its own for tests of signals and pipes."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from querator.cli.shell.tree import app
from querator.cli.terminal import streams
from querator.cli.terminal.streams import Terminals
from tests.daemons import QUERATOR

TERMINAL = Terminals(stdin=True, stdout=True, stderr=True, columns=120)


class CommandLine:
    """Calls commands in this process, with typer's runner."""

    def __init__(self, home: Path, socket: Path | None) -> None:
        self.environment: dict[str, str | None] = {name: None for name in os.environ if name.startswith("QUERATOR_")}
        self.environment |= {"HOME": str(home), "XDG_CONFIG_HOME": None, "XDG_STATE_HOME": None, "NO_COLOR": None}
        if socket is not None:
            self.environment["QUERATOR_SOCKET"] = str(socket)

    def __call__(
        self,
        *words: str,
        input: str | bytes | None = None,
        terminals: Terminals | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> Result:
        with streams.pretend(terminals or Terminals()):
            return CliRunner().invoke(app, list(words), input=input, env=self.environment | dict(env or {}))

    def ok(self, *words: str, **settings: Any) -> str:
        """Standard output of a command that must succeed."""
        result = self(*words, **settings)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: str, **settings: Any) -> Any:
        return json.loads(self.ok(*words, "-o", "json", **settings))

    def process(self, *words: str, **settings: Any) -> subprocess.Popen[Any]:
        """Starts a command as a process of its own, for tests of signals and pipes."""
        environment = {k: v for k, v in (os.environ | self.environment).items() if v is not None}
        return subprocess.Popen([*QUERATOR, *words], env=environment, **settings)


def fresh_name() -> str:
    return f"q-{uuid.uuid4().hex[:10]}"
