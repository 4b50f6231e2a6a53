"""A standalone Spark cluster for the tests: a master, and workers that stand for hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar, Self

import pyspark
from class_archive import jvm_options
from servers import until
from time_limit import LIMIT

BIN = Path(pyspark.__path__[0]) / "bin"
SMALL = f"{jvm_options()} -XX:-UsePerfData"
"""Options of every JVM: each runs for seconds."""


class StandaloneCluster:
    """A master and two workers with two cores each; with `settings`, each worker has two executors with a core each.

    Each worker has a local directory of its own, so that its executors share files only with each other, as on a host.
    """

    settings: ClassVar = {
        "spark.cores.max": "4", "spark.executor.cores": "1", "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": SMALL, "spark.driver.extraJavaOptions": SMALL,
        # All four executors must be there before the first task, or the first ones would run them all.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }  # fmt: skip

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="standalone"))
        self.url = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the master and the workers, and wait until they have found each other."""
        self._run("master", "master.Master", "--port", "0", "--webui-port", "0")
        self.url = self._found("master", r"Starting Spark master at (spark://\S+)")
        for name in ("one", "two"):
            arguments = ["--cores", "2", "--memory", "2g", "--work-dir", str(self.folder / f"work-{name}")]
            self._run(name, "worker.Worker", "--port", "0", "--webui-port", "0", *arguments, self.url)
        for name in ("one", "two"):
            self._found(name, "Successfully registered with master")
        return self

    def close(self) -> None:
        """End all processes, and remove the folder."""
        for process in reversed(self._processes):
            # A worker ends its executors when it is terminated, not when it is killed.
            process.terminate()
        for process in self._processes:
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, program: Path, *arguments: str, conf: dict[str, str], **environment: str) -> str:
        """Run a program with spark-submit; return what it prints, fail as it fails."""
        pairs = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        command = [str(BIN / "spark-submit"), "--master", self.url, *pairs, str(program), *arguments]
        return self.run(command, **environment)

    def run(self, command: list[str], **environment: str) -> str:
        """Run a command outside of the checkout, with none of its paths; return what it prints."""
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_THE_CHECKOUT}
        done = subprocess.run(
            command, env={**inherited, **environment}, cwd=self.folder, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    def _run(self, name: str, kind: str, *arguments: str) -> None:
        command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", *arguments]
        local = self.folder / f"local-{name}"
        environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_CHECKOUT}
        environment |= {"SPARK_LOCAL_DIRS": str(local), "SPARK_DAEMON_JAVA_OPTS": SMALL, "SPARK_DAEMON_MEMORY": "256m"}
        with open(self.folder / f"{name}.log", "wb") as log:
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _found(self, name: str, pattern: str) -> str:
        log, found = self.folder / f"{name}.log", ""

        def is_there() -> bool:
            nonlocal found
            text = log.read_text()
            assert all(process.poll() is None for process in self._processes), text[-3000:]
            match = re.search(pattern, text)
            found = match[match.lastindex or 0] if match else ""
            return match is not None

        until(is_there, LIMIT)
        return found


_OF_THE_CHECKOUT = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_TESTING", "SPARK_SUBMIT_OPTS"}
