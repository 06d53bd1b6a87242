"""`querator tls`: make certificates for a daemon and its clients, and renew them.

The certificates come from a CA of their own, so that a first set-up needs no other tool.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from querator.cli.shell.options import command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.session import Session
from querator.errors import Conflict, NotFound, QueratorError, UsageError

if TYPE_CHECKING:
    from querator.cli.tls.certificates import Issued

app = noun(NOUNS["tls"].help)

DAYS_MAX: Final = 3_650

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the certificates.", show_default=False)]
Days = Annotated[int, typer.Option("--days", min=1, max=DAYS_MAX, metavar="N", help="Expire after this many days.")]


@command(app, "init")
def init(
    session: Session,
    directory: Directory,
    names: Annotated[
        list[str],
        typer.Option("--name", metavar="HOST", help="Name or IP address of the daemon's machine. May be repeated."),
    ],
    client: Annotated[
        str, typer.Option("--client", metavar="NAME", help="Name in the certificate of the client.")
    ] = "client",
    days: Days = 365,
) -> None:
    """Make a CA, a certificate for the daemon and one for a client.

    Clients need ca.crt. Keep ca.key where nobody else can read it: whoever has it can make certificates that your
    daemon and clients trust.
    """
    _check_library()
    from querator.cli.tls.certificates import NAME_MAX, new_ca, new_client, new_server

    if not client.strip() or len(client) > NAME_MAX or not client.isprintable():
        raise UsageError(f"--client: '{client}' is not a name", hint=f"a name has 1 to {NAME_MAX} printable characters")
    ca = new_ca(names[0])
    made = {"ca": ca, "server": new_server(ca, names, days), "client": new_client(ca, client, days)}
    _write_new(directory, made)
    _print(session, directory, made)
    session.note("")
    session.note(f"daemon:  --tls-cert {directory / 'server.crt'} --tls-key {directory / 'server.key'}")
    session.note(f"clients: --endpoint https://{names[0]}:2319 --ca-file {directory / 'ca.crt'}")


@command(app, "renew")
def renew(session: Session, directory: Directory, days: Days = 365) -> None:
    """Renew the certificates of `querator tls init`, with the same names and keys.

    A running daemon uses its new certificate within seconds, and keeps all connections.
    """
    _check_library()
    from querator.cli.tls.certificates import read, renewed

    def on_disk(name: str) -> Issued:
        try:
            return read((directory / f"{name}.crt").read_bytes(), (directory / f"{name}.key").read_bytes())
        except FileNotFoundError as error:
            raise NotFound(f"there is no {error.filename}", hint=f"querator tls init {directory} --name HOST") from None
        except (ValueError, TypeError) as error:
            raise QueratorError(f"certificate {name} in {directory} cannot be read: {error}") from None

    ca = on_disk("ca")
    made = {name: renewed(ca, on_disk(name), days) for name in ("server", "client")}
    for name, issued in made.items():
        draft = directory / f"{name}.crt.{os.getpid()}"
        _create(draft, issued.pem, 0o644)
        draft.replace(directory / f"{name}.crt")
    _print(session, directory, made)


def _check_library() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise QueratorError(
            "certificates are made by the package 'cryptography', which is not installed",
            hint="pip install 'querator[tls]'",
        ) from None


def _print(session: Session, directory: Path, made: Mapping[str, Issued]) -> None:
    from querator.cli.tls.certificates import name_of

    records = [
        {
            "file": str(directory / f"{file}.crt"),
            "name": name_of(issued.certificate),
            "expires_at": f"{issued.certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}",
        }
        for file, issued in made.items()
    ]
    session.output.records(records, ("file", "name", "expires_at"), name="file")


def _write_new(directory: Path, made: Mapping[str, Issued]) -> None:
    """Write a certificate and a key for each name. Writes nothing if one of the files exists."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, issued in made.items():
            for path, content, mode in (
                (directory / f"{name}.key", issued.key_pem, 0o600),
                (directory / f"{name}.crt", issued.pem, 0o644),
            ):
                _create(path, content, mode)
                written.append(path)
    except BaseException:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise


def _create(path: Path, content: bytes, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise Conflict(f"{path} exists; nothing was written", hint="choose an empty directory") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
