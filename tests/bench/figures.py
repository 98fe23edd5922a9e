"""Figures, the printed table, and helpers of all parts of the bench."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console
from rich.table import Table

from kraftjbod.local.cluster_process import ClusterProcesses
from tests.bench import machine

START_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured number. ``beside`` is what the machine achieves without a broker, if known."""

    name: str
    value: float
    unit: str
    beside: str = ""
    how: str = ""


class Process(Protocol):
    """A kraftjbod daemon or a Kafka node."""

    @property
    def pid(self) -> int | None: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


@dataclass(slots=True)
class Report:
    """Everything that one run measured, in order."""

    figures: list[Figure] = field(default_factory=list)
    #: Directory with the jars of an Apache Kafka to measure as well.
    kafka_libs: Path | None = None

    def add(self, name: str, value: float, unit: str, *, beside: str = "", how: str = "") -> None:
        self.figures.append(Figure(name=name, value=value, unit=unit, beside=beside, how=how))

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(figure) for figure in self.figures]

    def print(self) -> None:
        table = Table(title="kraftjbod bench", title_justify="left")
        for heading in ("figure", "value", "unit", "the machine beside it", "how"):
            table.add_column(heading, justify="right" if heading == "value" else "left")
        for figure in self.figures:
            table.add_row(
                figure.name, f"{figure.value:,.6g}", figure.unit, figure.beside, figure.how
            )
        Console(width=160).print(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The same work without a broker, measured in this run."""

    write_mb_s: float
    copy_mb_s: float

    @classmethod
    def measure(cls, directory: Path) -> Machine:
        return cls(
            write_mb_s=machine.page_cache_write_mb_s(str(directory)),
            copy_mb_s=machine.loopback_copy_mb_s(),
        )

    def __str__(self) -> str:
        return f"write {self.write_mb_s:,.0f}, loopback {self.copy_mb_s:,.0f} MB/s"


@contextmanager
def running_cluster(
    *, brokers: int, dirs: int, config: Mapping[str, str] | None = None, **more: Any
) -> Iterator[ClusterProcesses]:
    """A fresh cluster that is killed and removed at the end.

    Without storage telemetry, unless ``config`` says so: figures are compared with older ones.
    """
    run_dir = Path(tempfile.mkdtemp(prefix="kraftjbod-bench-"))
    run_dir.chmod(0o755)
    keys = {"storage.telemetry.enable": "false", **(config or {})}
    cluster = ClusterProcesses.create(
        run_dir / "run", brokers=brokers, dirs=dirs, config=keys, **more
    )
    try:
        asyncio.run(cluster.start(timeout_s=START_TIMEOUT_S))
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(run_dir)


def cpu_s(daemons: Iterable[Process]) -> float:
    """CPU time that running daemons have used so far, user and system."""
    ticks = 0
    for daemon in daemons:
        fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mb(daemon: Process) -> float:
    """Resident memory of a daemon in 10**6 bytes."""
    pid = daemon.pid
    assert pid is not None, daemon
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
