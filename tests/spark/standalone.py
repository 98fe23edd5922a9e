"""A Spark standalone cluster of real processes: a master and workers on the loopback address.

Its executors have a separate Python environment, with our packages but without ``kraftjbod``: they
only have the files that Spark ships to them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from kraftjbod.spark.session.java import find_java
from tests.spark.running import QUICK_JAVA

START_S: Final = 180.0
_POLL_S: Final = 0.1
_SPARK: Final = Path(pyspark.__path__[0])
_LOG4J: Final = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A master or a worker, with all processes that it starts."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """``kill -9`` of the process and its executors with their Python processes."""
        # They are one process group: see start_new_session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for(self, pattern: str) -> str:
        """Return the first group of ``pattern``, once it is in the log."""
        deadline = time.monotonic() + START_S
        while True:
            text = self.log.read_text(encoding="utf-8", errors="replace")
            if found := re.search(pattern, text):
                return found[1]
            assert self.process.poll() is None, f"ended before {pattern!r}:\n{text[-3000:]}"
            assert time.monotonic() < deadline, f"no {pattern!r} in {START_S} s:\n{text[-3000:]}"
            time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneCluster:
    """``conf`` is for the driver: its address, executor sizes, and their Python."""

    master_url: str
    workers: tuple[Daemon, ...]
    conf: dict[str, str]


@contextlib.contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[StandaloneCluster]:
    """Yield a cluster whose workers have one core and 512 MiB each; logs are in ``folder``."""
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "log4j2.properties").write_text(_LOG4J)
    python = _executors_python(folder / "python")
    daemons: list[Daemon] = []
    try:
        master = _start(folder, "master", "Master")
        daemons.append(master)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        master.wait_for(r"New state: (ALIVE)")
        for number in range(1, workers + 1):
            work = str(folder / f"work-{number}")
            options = ("--cores", "1", "--memory", "512m", "--work-dir", work, url)
            daemons.append(_start(folder, f"worker-{number}", "Worker", *options))
        for worker in daemons[1:]:
            worker.wait_for(r"(Successfully registered) with master")
        conf = {
            "spark.pyspark.python": python,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.sql.shuffle.partitions": "2",
        }
        yield StandaloneCluster(master_url=url, workers=tuple(daemons[1:]), conf=conf)
    finally:
        for daemon in daemons[::-1]:
            daemon.kill()


def _start(folder: Path, name: str, role: str, *options: str) -> Daemon:
    log = folder / f"{name}.log"
    environ = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    environ |= {
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_HOME": str(_SPARK),
        "JAVA_HOME": str(Path(find_java(os.environ).path).resolve().parents[1]),
    }
    command = (
        str(_SPARK / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{role.lower()}.{role}",
        *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
        *options,
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
    return Daemon(process=process, log=log)


def _executors_python(folder: Path) -> str:
    """Return a Python with our site-packages as a plain folder: it ignores ``.pth`` files, so an
    editable ``kraftjbod`` stays unknown."""
    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "driver.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return str(folder / "bin" / "python")
