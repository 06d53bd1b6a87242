"""A Spark standalone cluster on loopback: a master, and workers with one core each, from the jars in pyspark."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path


class Cluster:
    """Each worker has its own address, because Spark starts a second attempt only on another host."""

    def __init__(self, directory: Path, hosts: tuple[str, ...] = ("127.0.0.1", "127.0.0.2")) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.url = f"spark://127.0.0.1:{port}"
        try:
            self._start("master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
            for host in hosts:
                options = ["--host", host, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
                self._start("worker.Worker", *options, "--work-dir", str(directory / "work"), self.url)
            self._wait_until_registered(len(hosts))
        except BaseException:
            self.stop()
            raise

    def _start(self, role: str, *words: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        # Executors inherit this environment. Without PYTHONPATH, they cannot import from this checkout.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:-UsePerfData",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *words]
        with (self._directory / "cluster.log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _wait_until_registered(self, workers: int) -> None:
        end = time.monotonic() + 60
        while self.log.count("Successfully registered with master") < workers:
            assert time.monotonic() < end, self.log
            time.sleep(0.1)

    @property
    def log(self) -> str:
        return (self._directory / "cluster.log").read_text(errors="replace")

    def stop(self) -> None:
        """Stops the workers first, because they stop their executors."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30)
