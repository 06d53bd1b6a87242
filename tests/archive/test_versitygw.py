"""The archive on another implementation of S3: versitygw, which keeps objects as files.

Uses `versitygw` from PATH, or builds it with Go: go install github.com/versity/versitygw/cmd/versitygw@latest
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from querator import limits
from querator.config import ArchiveConfig
from querator.daemon.archive import Bucket, care
from tests.archive.looking import bucket_of, restored, shipped, shipper_of
from tests.archive.test_standby import followed, promoted
from tests.maintenance.house import OPERATOR, House
from tests.waiting import until

pytestmark = pytest.mark.slow

OpenHouse = Callable[..., House]
KEYS = {"access_key_id": "testing", "secret_access_key": "testing-secret", "region": "us-east-1"}
MODULE = "github.com/versity/versitygw/cmd/versitygw@latest"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    if found := shutil.which("versitygw"):
        return found
    if shutil.which("go") is None:
        pytest.skip("neither versitygw nor Go is installed")
    directory = tmp_path_factory.mktemp("go")
    environment = {**os.environ, "GOBIN": str(directory)}
    built = subprocess.run(["go", "install", MODULE], env=environment, capture_output=True, text=True, timeout=900)
    if built.returncode:
        pytest.skip(f"versitygw cannot be built: {built.stderr.strip().splitlines()[-1]}")
    return str(directory / "versitygw")


class Gateway:
    """A running versitygw."""

    def __init__(self, program: str, directory: Path) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._program = program
        self._objects = directory / "objects"
        self._objects.mkdir()
        self._log = directory / "versitygw.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.restart()

    def restart(self, secret: str = KEYS["secret_access_key"]) -> None:
        """Starts it, or starts it again, with a secret key that clients must have."""
        self.stop()
        words = [self._program, "--access", KEYS["access_key_id"], "--secret", secret, "--port", self.address]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen([*words, "posix", str(self._objects)], stdout=log, stderr=log)
        until(lambda: _answers(self.address), "versitygw does not answer")

    def stop(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()


@pytest.fixture
def gateway(program: str, tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(program, tmp_path)
    try:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://{gateway.address}",
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
            region_name=KEYS["region"],
        )
        client.create_bucket(Bucket="bucket")
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture
def archive(gateway: Gateway) -> ArchiveConfig:
    options = {**KEYS, "endpoint": f"http://{gateway.address}"}
    return ArchiveConfig("s3://bucket/queue", interval=0.01, heartbeat=0.5, options=options)


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) == 0


def test_conditional_puts_are_refused(archive: ArchiveConfig) -> None:
    bucket = bucket_of(archive)
    care.try_store(bucket)
    assert bucket.create("log/1", b"mine") is None
    assert bucket.create("log/1", b"mine") is None
    assert bucket.create("log/1", b"yours") == b"mine"


def test_objects_are_listed_in_order_and_deleted(archive: ArchiveConfig, tmp_path: Path) -> None:
    bucket = bucket_of(archive)
    for number in (3, 1, 2):
        bucket.create(f"log/{number}", b"x" * number)
    assert [entry.name for entry in bucket.entries("log/", after="log/1")] == ["log/2", "log/3"]
    big = tmp_path / "big"
    big.write_bytes(os.urandom(12_000_000))
    bucket.upload("base/b", big)
    assert b"".join(bucket.pieces("base/b")) == big.read_bytes()
    bucket.delete(["log/1", "log/3"])
    assert [entry.name for entry in bucket.entries("")] == ["base/b", "log/2"]


def test_a_queue_is_shipped_restored_and_taken_over(
    open_house: OpenHouse, archive: ArchiveConfig, tmp_path: Path
) -> None:
    house = open_house("live")
    house.create(partitions=2)
    house.produce("1")
    house.close()
    live = open_house("live", archive=archive)
    live.produce("2")
    shipped(live)
    standby = open_house("standby", archive=archive, standby=True)
    live.produce("3")
    followed(live, standby)
    again = restored(archive, tmp_path / "restored")
    assert sorted(again.contents()) == ["1", "2", "3"]
    again.close()
    lost: list[object] = []
    live.service.lost_archive = lost.append
    promoted(standby)
    assert sorted(standby.contents()) == ["1", "2", "3"]
    live.until(lambda: bool(lost))
    standby.produce("4")
    shipped(standby)
    assert shipper_of(standby).ledger.epoch == 2
    care.verify(Bucket(archive.url, archive.options))


def test_other_credentials_are_noticed_and_the_old_ones_are_used_again(
    open_house: OpenHouse, gateway: Gateway, archive: ArchiveConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_SECONDS_MAX", 0.1)
    house = open_house("live", archive=archive)
    house.create()
    shipped(house)
    gateway.restart("another-secret")
    house.produce("1")
    house.until(lambda: "access is denied" in shipper_of(house).trouble)
    assert house.service.health(OPERATOR)[0]
    gateway.restart()
    shipped(house)
    assert house.service.health(OPERATOR) == (True, "")


@pytest.mark.parametrize("unsigned", ["false", "true"])
def test_an_unsigned_payload_is_taken_too(archive: ArchiveConfig, unsigned: str) -> None:
    bucket = Bucket(archive.url, {**archive.options, "unsigned_payload": unsigned})
    assert bucket.create("log/1", b"mine") is None
    assert bucket.create("log/1", b"yours") == b"mine"
