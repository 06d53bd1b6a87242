"""What a token costs, and whether the time of a refusal tells how near a wrong token was.

    python -m bench.tokens cost [--turns 2000]       bytecodes and CPU time of 1x32, with and without a token, by turns
    python -m bench.tokens timing [--tries 10000]    answers to near and to far misses, by turns, from a real daemon

`cost` runs the daemon's own protocol, service, engine and store in this process, as `bench.hotpath` does. In each turn,
32 clients send each request once without a token and once with it, in changing order. The shares are medians over all
turns.

`timing` starts a daemon on loopback. A near miss is a real token whose last characters of the secret are wrong, a far
miss has nothing in common with one; both have a right checksum. The interval of their difference must include
zero.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench import hotpath
from querator import Client
from querator.clock import SystemClock
from querator.config import daemon_config
from querator.daemon.access import token_text
from querator.daemon.server import DaemonServer
from querator.daemon.service import Service

NEAR_WRONG_CHARACTERS = 2
WARM_UP_TURNS = 50


def cost(turns: int) -> None:
    plain, token = (hotpath.run(1, 32, 4, count=True, token=with_token) for with_token in (False, True))
    print(f"{'bytecodes':<22}" + "".join(f"{step:>12}" for step in hotpath.STEPS))
    for name, figures in (("no token", plain), ("a token", token)):
        print(f"{name:<22}" + "".join(f"{figures[step]:>12,.1f}" for step in hotpath.STEPS))
    print(f"{'more':<22}" + "".join(f"{token[step] / plain[step] - 1:>12.1%}" for step in hotpath.STEPS))
    with hotpath.in_memory() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pairs = runner.run(_turns(scratch, turns))
    print(f"{'µs of CPU, medians':<22}" + "".join(f"{step:>12}" for step in pairs))
    for name, index in (("no token", 0), ("a token", 1)):
        medians = [statistics.median([pair[index] for pair in of_step]) for of_step in pairs.values()]
        print(f"{name:<22}" + "".join(f"{median:>12,.2f}" for median in medians))
    shares = [sorted([token / plain - 1 for plain, token in of_step]) for of_step in pairs.values()]
    print(f"{'more':<22}" + "".join(f"{statistics.median(of_step):>12.1%}" for of_step in shares))
    # 95% of all samples have the true median between these two of their sorted values.
    half_width = 0.98 * turns**0.5
    for name, at in (("at least", turns / 2 - half_width), ("at most", turns / 2 + half_width)):
        index = min(turns - 1, max(0, round(at)))
        print(f"{f'  {name} (95%)':<22}" + "".join(f"{of_step[index]:>12.1%}" for of_step in shares))


async def _turns(directory: Path, turns: int) -> dict[str, list[tuple[float, float]]]:
    """The CPU time of a request without and with a token, in microseconds, for each step and turn.

    One daemon answers both, because with --insecure it also serves clients without a token. So both share the queue,
    the files and the noise.
    """
    config = daemon_config(data=directory, insecure=True, log_level="error", environ={})
    service = Service(config, SystemClock())
    await service.start()
    try:
        bench = hotpath.Bench(DaemonServer(config, service, service.registry.clock), 1, 32)
        await bench.create_queues()
        text = (await service.registry.access.create("bench", "operator", ["ben*"], 0, "bench")).text
        held: list[list[str]] | None = None
        pairs: dict[str, list[tuple[float, float]]] = {step: [] for step in hotpath.STEPS}
        for turn in range(WARM_UP_TURNS + turns):
            used: dict[bool, dict[str, float]] = {}
            for with_token in (False, True) if turn % 2 else (True, False):
                bench.token = text if with_token else ""
                meter = hotpath.Meter(lambda: time.thread_time() * 1e6)
                held = await bench.round(meter, held)
                used[with_token] = meter.per(32)
            if turn >= WARM_UP_TURNS:
                for step, of_step in pairs.items():
                    of_step.append((used[False][step], used[True][step]))
        return pairs
    finally:
        await service.stop()


def near_miss(token: str) -> str:
    """The token with other last characters of its secret, and the checksum that belongs to them."""
    body = token[: -token_text.CHECKSUM_CHARACTERS]
    wrong = right = body[-NEAR_WRONG_CHARACTERS:]
    while wrong == right:
        wrong = "".join(random.choices(token_text.DIGITS, k=NEAR_WRONG_CHARACTERS))
    return token_text.with_checksum(body[:-NEAR_WRONG_CHARACTERS] + wrong)


def far_miss(token: str) -> str:
    return token_text.generate(token.split("-")[1])


def timing(tries: int) -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        os.environ["HOME"] = directory
        unix = str(Path(directory, "q.sock"))
        words = ["daemon", "run", "--data", f"{directory}/data", "--socket", unix, "--http", address]
        # The wait after many failures would hide what is measured here.
        code = "from querator import limits\nlimits.FAILED_ATTEMPTS_MAX = 10**9\n"
        code += "from querator.cli.main import main\nmain()"
        daemon = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL)
        try:
            with Client(f"unix:{unix}", timeout=60) as client:
                token = client.create_token("measured", "viewer").token
            took: dict[str, list[float]] = {"near": [], "far": []}
            connection = http.client.HTTPConnection(address)
            # Made beforehand: what runs just before a request changes its time.
            misses = [(near_miss(token), far_miss(token)) for _ in range(tries)]
            for near, far in misses:
                for kind, text in random.sample([("near", near), ("far", far)], 2):
                    headers = {"Authorization": f"Bearer {text}"}
                    started = time.perf_counter()
                    connection.request("POST", "/v1/queues.list", b"{}", headers)
                    response = connection.getresponse()
                    response.read()
                    took[kind].append(time.perf_counter() - started)
                    assert response.status == 401
            report(took["near"], took["far"])
        finally:
            daemon.terminate()
            daemon.wait()


def report(near: list[float], far: list[float]) -> None:
    def median(seconds: list[float]) -> float:
        return statistics.median(seconds) * 1e6

    print(f"near misses {median(near):.2f} µs, far misses {median(far):.2f} µs (medians of {len(near):,} each)")
    differences = sorted([(one - other) * 1e6 for one, other in zip(near, far, strict=True)])
    middle, half_width = len(differences) // 2, round(0.98 * len(differences) ** 0.5)
    low, high = differences[middle - half_width], differences[min(middle + half_width, len(differences) - 1)]
    print(f"difference {differences[middle]:+.2f} µs; the true one is between {low:+.2f} and {high:+.2f} (95%)")
    wins = sum(one < other for one, other in zip(near, far, strict=True)) / len(near)
    print(f"a near miss was faster in {wins:.1%} of the pairs; 50% ± {100 / len(near) ** 0.5:.1f}% is chance")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "timing"))
    parser.add_argument("--turns", type=int, default=2_000)
    parser.add_argument("--tries", type=int, default=10_000)
    chosen = parser.parse_args()
    if chosen.what == "cost":
        cost(chosen.turns)
    else:
        timing(chosen.tries)
