"""What a token costs, and whether the time of a refusal tells how near a wrong token was.

    python -m bench.tokens cost [--rounds 40]        bytecodes and CPU time of 1x32, with and without a token, by turns
    python -m bench.tokens timing [--tries 10000]    answers to near and to far misses, by turns, from a real daemon

`cost` runs the daemon's own protocol, service, engine and store in this process, as `bench.hotpath` does. `timing`
starts a daemon on loopback. A near miss is a real token whose last characters of the secret are wrong, a far miss has
nothing in common with one; both have a right checksum. The difference of their medians must be within the noise, which
is the difference between two halves of the near misses.
"""

from __future__ import annotations

import argparse
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

from bench import hotpath
from querator import Client
from querator.daemon.access import token_text

NEAR_WRONG_CHARACTERS = 2


def cost(rounds: int) -> None:
    for unit, count in (("bytecodes", True), ("µs of CPU", False)):
        plain: dict[str, list[float]] = {step: [] for step in hotpath.STEPS}
        token: dict[str, list[float]] = {step: [] for step in hotpath.STEPS}
        for _ in range(1 if count else 5):
            for figures, with_token in ((plain, False), (token, True)):
                for step, value in hotpath.run(1, 32, 4 if count else rounds, count=count, token=with_token).items():
                    figures[step].append(value)
        print(f"{unit:<14}" + "".join(f"{step:>12}" for step in hotpath.STEPS))
        for name, figures in (("no token", plain), ("a token", token)):
            print(f"{name:<14}" + "".join(f"{min(figures[step]):>12,.1f}" for step in hotpath.STEPS))
        more = [min(token[step]) / min(plain[step]) - 1 for step in hotpath.STEPS]
        print(f"{'more':<14}" + "".join(f"{share:>12.1%}" for share in more))


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
            for _ in range(tries):
                for kind, make in random.sample([("near", near_miss), ("far", far_miss)], 2):
                    headers = {"Authorization": f"Bearer {make(token)}"}
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
    print(f"difference {abs(median(near) - median(far)):.2f} µs")
    print(f"noise      {abs(median(near[::2]) - median(near[1::2])):.2f} µs (two halves of the near misses)")
    wins = sum(one < other for one, other in zip(near, far, strict=True)) / len(near)
    print(f"a near miss was faster in {wins:.1%} of the pairs; 50% ± {100 / len(near) ** 0.5:.1f}% is chance")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "timing"))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tries", type=int, default=10_000)
    chosen = parser.parse_args()
    if chosen.what == "cost":
        cost(chosen.rounds)
    else:
        timing(chosen.tries)
