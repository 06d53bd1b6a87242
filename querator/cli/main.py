"""The entry point of the `querator` command. Completions are answered before typer is imported, to be fast."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

INTERRUPTED_EXIT_CODE = 130


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:
        # Catches Ctrl-C while modules are imported. Later `tree.py` catches it.
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None
    except SystemExit as end:
        if "duckdb" in sys.modules and isinstance(end.code, int | None):
            # The daemon and the commands that read files have closed everything. Clearing up the interpreter would only
            # delay their end, and compiled modules keep references that duckdb reports as leaks on the way.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # the reader has gone, or the stream is closed
                    stream.flush()
            os._exit(end.code or 0)
        raise


def _runs_daemon() -> bool:
    return [word for word in sys.argv[1:] if not word.startswith("-")][:2] == ["daemon", "run"]


def _main() -> None:
    if _runs_daemon() and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        # SIGHUP must not end a daemon that is still importing its modules. The server sets the real handler. This one
        # is not SIG_IGN, because the server treats SIG_IGN as a request to outlive the terminal.
        signal.signal(signal.SIGHUP, lambda *_: None)
    if sys.argv[1:2] == ["__complete"]:
        from querator.cli.shell.candidates import answer

        raise SystemExit(answer(sys.argv[2:]))
    for stream in (sys.stdout, sys.stderr):
        # Print characters that the locale cannot encode as escapes, instead of failing.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from typer.main import get_command

    from querator.cli.shell.tree import app

    get_command(app).main()


if __name__ == "__main__":
    main()
