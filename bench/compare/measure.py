"""Measures processes and samples: CPU, peak memory, percentiles, and the cost of an fsync on this machine."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def process_tree(root_pid: int) -> list[int]:
    """The process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat_fields(int(entry))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [root_pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, ()))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes, and of their children that have ended and been waited for."""
    ticks = 0
    for pid in pids:
        fields = _stat_fields(pid)
        if fields:
            ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS_PER_SECOND


def machine_cpu_seconds() -> float:
    """The CPU time of all processes and of the kernel, on all cores."""
    fields = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    idle, waiting_for_disk = fields[3], fields[4]
    return (sum(fields) - idle - waiting_for_disk) / _TICKS_PER_SECOND


def forget_peak_memory(pids: Iterable[int]) -> None:
    """Resets the peak memory that the kernel records. If the kernel refuses, the peak includes the past."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue


def peak_memory_bytes(pids: Iterable[int]) -> int:
    """The sum of the peaks (VmHWM). Memory that processes share, such as code and files, counts once."""
    private = shared_memory = shared_files = 0
    for pid in pids:
        in_memory, in_files = _status_bytes(pid, "RssShmem:"), _status_bytes(pid, "RssFile:")
        private += _status_bytes(pid, "VmHWM:") - in_memory - in_files
        shared_memory, shared_files = max(shared_memory, in_memory), max(shared_files, in_files)
    return private + shared_memory + shared_files


def resident_memory_bytes(pids: Iterable[int]) -> int:
    return sum(_status_bytes(pid, "VmRSS:") for pid in pids)


def percentile(samples: Sequence[int], share: float) -> int:
    """The nearest-rank percentile of sorted samples, or 0 if there are none."""
    if not samples:
        return 0
    return samples[min(len(samples) - 1, int(len(samples) * share))]


def fsync_us(directory: Path, rounds: int = 200) -> tuple[int, int]:
    """p50 and p99 of an append of 200 bytes with fdatasync, which every durable acknowledgement needs at least once."""
    samples = []
    with tempfile.NamedTemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(rounds):
            file.write(b"x" * 200)
            began = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            samples.append((time.perf_counter_ns() - began) // 1000)
    samples.sort()
    return percentile(samples, 0.5), percentile(samples, 0.99)


def filesystem_type(directory: Path) -> str:
    """The type of the file system that holds the directory (the longest mount point that is a prefix of it)."""
    best, kind = "", "unknown"
    real = str(directory.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, mount_kind, *_ = line.split()
        inside = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best):
            best, kind = mount_point, mount_kind
    return kind


def machine() -> dict[str, str | int]:
    """The properties of the machine that matter for the numbers, without its name."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(pages * page_bytes / 2**30),
        "kernel": os.uname().release,
    }


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat, from the state on: [0] state, [1] parent, [11:15] CPU times. Empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The command name may contain spaces and brackets. The fields follow the last bracket.
    return text[text.rindex(")") + 2 :].split()


def _status_bytes(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0
