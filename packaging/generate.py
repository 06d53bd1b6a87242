"""Generates completions/ and man/ from the command tree, and docs/openapi.json and docs/api.md from the table of calls.

With `--check` it writes nothing, and fails if a file is stale."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def wanted() -> dict[Path, str]:
    import openapi

    from querator.cli.shell import describe, manpages, scripts

    tree = describe.tree()
    files = {Path("completions") / name: scripts.script(shell, tree) for shell, name in scripts.FILES.items()}
    files |= {Path("man") / name: text for name, text in manpages.pages(tree).items()}
    return files | {Path(name): text for name, text in openapi.files().items()}


def stale(files: dict[Path, str]) -> list[Path]:
    """The generated files that are missing or different, and files that are no longer generated."""
    found = [path for path, text in files.items() if not (ROOT / path).is_file() or (ROOT / path).read_text() != text]
    kept = [path.relative_to(ROOT) for folder in ("completions", "man") for path in (ROOT / folder).iterdir()]
    return sorted(found + [path for path in kept if path not in files])


def main() -> int:
    files = wanted()
    changed = stale(files)
    if "--check" in sys.argv[1:]:
        for path in changed:
            print(f"{path} is stale; python packaging/generate.py writes it", file=sys.stderr)
        return 1 if changed else 0
    for path in changed:
        if path in files:
            (ROOT / path).parent.mkdir(exist_ok=True)
            (ROOT / path).write_text(files[path])
        else:
            (ROOT / path).unlink()
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
