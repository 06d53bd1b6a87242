"""Where the `querator` command begins. Shell completion is answered before typer is even imported."""

from __future__ import annotations

import sys

INTERRUPTED_EXIT_CODE = 130


def main() -> None:
    try:
        _main()
    except KeyboardInterrupt:
        # While modules are imported nobody else listens; from there on `tree.py` does.
        raise SystemExit(INTERRUPTED_EXIT_CODE) from None


def _main() -> None:
    if sys.argv[1:2] == ["__complete"]:
        from querator.cli.shell.candidates import answer

        raise SystemExit(answer(sys.argv[2:]))
    for stream in (sys.stdout, sys.stderr):
        # A name that the locale cannot spell is shown escaped instead of ending the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    from typer.main import get_command

    from querator.cli.shell.tree import app

    get_command(app).main()


if __name__ == "__main__":
    main()
