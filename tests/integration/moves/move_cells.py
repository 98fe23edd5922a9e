"""The cells of ``test_move_crashes.py``, and their parallel execution.

A :class:`Cell` is a step of a move between two directories of one broker, the event at exactly that
moment, and the number of replicas. :func:`run_cells` gives every broker of a cluster a thread that
processes cells. A cell affects only its own broker; cells that kill the controller each have a
cluster that no other cell uses."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.local.cluster_process import directory_id
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.protocol import kafka_codec
from tests.integration import faulty_broker, raw
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster, read_metrics
from tests.integration.faulty_broker import Trap

# Records before the move: two full segments and part of a third.
FILLED_RECORDS: Final = 300
VALUE_BYTES: Final = 8_000
# Records during the move: a few hundred per second, because all of them are read back.
PAUSE_S: Final = 0.01
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.05
_ALTER_VERSION: Final = 2


class Happens(Enum):
    BROKER_KILLED = "broker-killed"
    SOURCE_DIES = "source-dies"
    TARGET_DIES = "target-dies"
    CONTROLLER_KILLED = "controller-killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """``trap`` is the moment of the step; ``{topic}``, ``{source}`` and ``{target}`` are filled
    in."""

    step: str
    trap: Trap
    what: Happens
    replicas: int

    def __str__(self) -> str:
        return f"{self.step}-{self.what.value}-rf{self.replicas}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a cell; ``findings`` has one sentence per violation."""

    findings: tuple[str, ...]
    moved: bool = False
    seconds: float = 0.0


def run_cells(work: Iterable[tuple[Cluster, list[Cell]]]) -> dict[str, Outcome]:
    """Run the cells of each cluster on all of its brokers; return outcomes by the cell's name."""
    outcomes: dict[str, Outcome] = {}
    threads = []
    for cluster, cells in work:
        topics = _create_topics(cluster, cells)
        for broker_id in cluster.brokers:
            own: queue.SimpleQueue[Cell] = queue.SimpleQueue()
            for cell in cells[broker_id - 1 :: len(cluster.brokers)]:
                own.put(cell)
            ring = _Ring(cluster, broker_id, topics)
            thread = threading.Thread(target=ring.work_off, args=(own, outcomes), daemon=True)
            thread.start()
            threads.append(thread)
    for thread in threads:
        thread.join()
    return outcomes


def _create_topics(cluster: Cluster, cells: list[Cell]) -> dict[str, str]:
    """Create one topic for each cell, with its first replica on the broker that will run it."""
    brokers = sorted(cluster.brokers)
    topics = {str(cell): f"move-{number}" for number, cell in enumerate(cells)}
    wanted = {}
    for number, cell in enumerate(cells):
        first = number % len(brokers)
        replicas = (brokers[first:] + brokers[:first])[: cell.replicas]
        wanted[topics[str(cell)]] = {
            "assignments": {0: replicas},
            "configs": {"segment.bytes": str(1 << 20), "min.insync.replicas": "1"},
        }
    with cluster.admin() as admin:
        admin.create_topics(wanted)
    return topics


class _Ring:
    """One broker and the cells that run on it, one after the other."""

    def __init__(self, cluster: Cluster, broker_id: int, topics: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._broker = cluster.brokers[broker_id]
        self._dirs = self._broker.files.log_dirs
        self._topics = topics

    def work_off(self, cells: queue.SimpleQueue[Cell], outcomes: dict[str, Outcome]) -> None:
        while not cells.empty():
            cell = cells.get()
            started = time.monotonic()
            try:
                outcome = self._run(cell)
            except Exception:
                outcome = Outcome(findings=(traceback.format_exc(),))
            outcomes[str(cell)] = replace(outcome, seconds=time.monotonic() - started)
            self._tidy_up()

    def _run(self, cell: Cell) -> Outcome:
        topic = self._topics[str(cell)]
        _wait(f"{topic} to be on a disk", lambda: [] if self._homes(topic) else ["it is not"])
        (source,) = self._homes(topic)
        (target,) = (path for path in self._dirs if path != source)
        with Load(
            self._cluster.bootstrap, topic, 1, value_bytes=VALUE_BYTES, pause_s=PAUSE_S
        ) as load:
            _flows(load, FILLED_RECORDS)
            dead = {Happens.SOURCE_DIES: source, Happens.TARGET_DIES: target}.get(cell.what)
            faulty_broker.arm(self._broker, self._trap(cell, topic, source, target, dead))
            self._move(topic, target)
            self._await_fault(cell, dead)
            self._heal(cell)
            _wait("all to be settled", lambda: self._unsettled(topic, cell))
            _flows(load, 50)
            load.stop()
        return Outcome(
            findings=tuple(judge(self._cluster.bootstrap, topic, load).findings),
            moved=self._homes(topic) == [target],
        )

    def _trap(self, cell: Cell, topic: str, source: Path, target: Path, dead: Path | None) -> Trap:
        kills_controller = cell.what is Happens.CONTROLLER_KILLED
        return replace(
            cell.trap,
            path=cell.trap.path.format(topic=topic, source=source, target=target),
            kill=cell.what is Happens.BROKER_KILLED,
            kill_pid=self._cluster.local.controller.pid if kills_controller else None,
            fail_dir=None if dead is None else str(dead),
        )

    def _move(self, topic: str, target: Path) -> None:
        request = kafka_codec.message("AlterReplicaLogDirsRequest")
        topics = [request.AlterReplicaLogDirTopic(name=topic, partitions=[0])]
        dirs = [request.AlterReplicaLogDir(path=str(target), topics=topics)]
        try:
            answer = raw.exchange(self._broker.address, request(dirs=dirs), _ALTER_VERSION)
        except ConnectionError:
            # It was killed before it could answer.
            assert faulty_broker.sprung(self._broker), "the move was not answered"
            return
        error = answer.results[0].partitions[0].error_code
        assert error == 0, f"the move was refused with {error}"

    def _await_fault(self, cell: Cell, dead: Path | None) -> None:
        """Wait until the fault has happened and was noticed."""
        broker, controller = self._broker, self._cluster.local.controller
        _wait(f"{cell} to strike", lambda: [] if faulty_broker.sprung(broker) else self._story())
        if cell.what is Happens.BROKER_KILLED:
            _wait("the broker to be gone", lambda: ["it runs"] if broker.is_running else [])
        elif cell.what is Happens.CONTROLLER_KILLED:
            _wait("the controller to be gone", lambda: ["it runs"] if controller.is_running else [])
        else:
            _wait(
                f"{dead} to be offline",
                lambda: [] if self._reported_offline(str(dead)) else self._story(),
            )

    def _heal(self, cell: Cell) -> None:
        """Restart stopped daemons and repair all disks."""
        faulty_broker.disarm(self._broker)
        if cell.what is Happens.CONTROLLER_KILLED:
            self._cluster.local.controller.start()
            return
        if self._broker.is_running:
            self._cluster.stop_daemon(self._broker)
        self._broker.start()

    def _tidy_up(self) -> None:
        """Clean up, so that a failed cell does not affect the next ones."""
        faulty_broker.disarm(self._broker)
        for daemon in (self._cluster.local.controller, self._broker):
            if not daemon.is_running:
                daemon.start()

    # --- observed state --------------------------------------------------------------------------

    def _unsettled(self, topic: str, cell: Cell) -> list[str]:
        """Return the differences from the required final state."""
        homes, left = self._homes(topic), self._leftovers(topic)
        reasons = [f"left over: {left}"] if left else []
        if len(homes) != 1:
            return [*reasons, f"current copies: {homes}"]
        try:
            partition = self._cluster.metadata().partition_named(TopicPartition(topic, 0))
        except OperatingError as e:
            return [*reasons, f"metadata: {e.message}"]
        assert partition is not None, topic
        named = partition.directory_of(BrokerId(self._broker_id))
        if str(named) != directory_id(homes[0]):
            reasons.append(f"metadata names {named}, it is in {homes[0]}")
        if partition.leader < 0 or len(partition.isr) != cell.replicas:
            reasons.append(f"leader {partition.leader}, isr {partition.isr}")
        figures = _figures(self._broker)
        names = ("QueuedReplicaToDirAssignments", "ReplicaAlterLogDirsPartitionCount")
        reasons += [f"{name} is {figures.get(name)}" for name in names if figures.get(name) != 0]
        return reasons

    def _homes(self, topic: str) -> list[Path]:
        """Return the directories with a current replica."""
        return [path for path in self._dirs if (path / f"{topic}-0").exists()]

    def _leftovers(self, topic: str) -> list[str]:
        return [
            f"{path.name}/{name}"
            for path in self._dirs
            for name in os.listdir(path)
            if name.startswith(f"{topic}-0.")
        ]

    def _reported_offline(self, path: str) -> bool:
        """Return whether this incarnation of the broker logged that the directory is offline."""
        return any(
            event["event"] == "log_dir_offline" and event.get("log_dir") == path
            for event in _this_life(self._broker)
        )

    def _story(self) -> list[str]:
        """Return the last events of the broker, for a cell whose wait timed out."""
        return [json.dumps(event)[:300] for event in _this_life(self._broker)[-15:]]


def _this_life(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """Return the events since the daemon's last start."""
    events = daemon.events()
    starts = [i for i, event in enumerate(events) if event["event"] == "registered_with_controller"]
    return events[starts[-1] :] if starts else events


def _figures(daemon: DaemonProcess) -> dict[str, float]:
    return read_metrics(daemon)


def _flows(load: Load, records: int) -> None:
    before = load.acked_by_partition()
    _wait(
        f"{records} records more",
        lambda: [] if load.flowed_since(before, records) else [load.explain()],
    )


def _wait(what: str, missing: Callable[[], list[str]]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while reasons := missing():
        assert time.monotonic() < deadline, "\n".join([f"waited for {what}:", *reasons])
        time.sleep(_POLL_S)
