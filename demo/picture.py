"""Records the picture in the README as SVG: the output of real commands on a pseudo-terminal.

    python demo/picture.py docs/terminal.svg

It starts a daemon in a temporary directory. `make picture` runs it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 104
SESSION = (
    "querator queues create mail-dead",
    "querator queues create mail --partitions 2 --max-attempts 3 --dead-queue mail-dead",
    "seq 1000 | querator queue produce mail --lines --kind newsletter",
    "querator queue produce mail 'dear Ann, …' --kind welcome --reference customer-7",
    "querator partitions drain mail 0",
    "querator partitions list mail --columns partition,storage,state,ready,leased,since",
    'querator sql mail "select partition, kind, count(*) as items from items group by all order by all"',
    "querator queue lease mail -n 2 --columns id,attempts,kind,lease_deadline,payload",
    "querator queue stats mail",
)


def on_a_terminal(command: str, environment: dict[str, str]) -> str:
    """The output of a command on a pseudo-terminal, with colour and relative times."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(["bash", "-c", command], stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    seen = b""
    while True:
        try:
            piece = os.read(master, 65_536)
        except OSError:  # Linux raises EIO when the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(master)
    if process.wait() != 0:
        raise SystemExit(f"{command} failed:\n{seen.decode()}")
    return seen.decode().replace("\r\n", "\n")


def record(target: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="querator-"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUERATOR_")}
    environment |= {
        "HOME": str(directory),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "QUERATOR_DATA": str(directory / "data"),
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "LC_ALL": "C.UTF-8",
        "QUERATOR_NO_PROGRESS": "1",
    }
    environment.pop("NO_COLOR", None)
    with open(directory / "log", "wb") as log:
        daemon = subprocess.Popen(["querator", "daemon", "run"], env=environment, stdout=log, stderr=log)
    try:
        status = ["querator", "daemon", "status", "-q"]
        while subprocess.run(status, env=environment, capture_output=True).returncode != 0:
            if daemon.poll() is not None:
                raise SystemExit((directory / "log").read_text())
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), color_system="truecolor")  # noqa: SIM115
        for command in SESSION:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            console.print(Text.from_ansi(on_a_terminal(command, environment).rstrip()))
        target.write_text(console.export_svg(title="querator", unique_id="querator"))
    finally:
        daemon.terminate()
        daemon.wait(20)
        shutil.rmtree(directory)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
