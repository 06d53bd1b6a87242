"""Helpers that several tests of the archive use."""

from __future__ import annotations

from pathlib import Path

from querator.config import ArchiveConfig
from querator.daemon.archive import Bucket, Shipper, care, restoring
from tests.maintenance.house import House


def shipper_of(house: House) -> Shipper:
    shipper = house.registry.shipper
    assert shipper is not None
    return shipper


def shipped(house: House) -> None:
    """Waits until the archive has everything that is durable now, and a base of every partition."""
    shipper = shipper_of(house)

    def is_done() -> bool:
        wanted = shipper.ask()
        house.until(lambda: shipper.cuts_done >= wanted or bool(shipper.trouble))
        with shipper._lock:
            is_base_on_its_way = bool(shipper._bases)
        return shipper.cuts_done >= wanted and not (shipper.wanted_bases() or is_base_on_its_way)

    house.until(is_done)


def bucket_of(archive: ArchiveConfig) -> Bucket:
    return Bucket(archive.url, archive.options)


def restored(archive: ArchiveConfig, directory: Path, **options: object) -> House:
    """A service on a directory that was restored from the archive. It does not use the archive itself."""
    restoring.restore(bucket_of(archive), directory, **options)  # type: ignore[arg-type]
    if (directory / "partitions").is_dir():
        (directory / "partitions").rename(directory / "default")
    return House(directory, tuple(path.name for path in directory.iterdir() if (path / "journal").is_dir()))


def pruned(house: House, archive: ArchiveConfig) -> Bucket:
    """Ships six cuts, and prunes everything that the last one does not need."""
    for number in range(6):
        house.produce(f"{number}")
        shipped(house)
        house.advance("1s")
    bucket = bucket_of(archive)
    assert care.prune(bucket, house.clock.now_us()).objects > 5
    return bucket
