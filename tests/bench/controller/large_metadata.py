"""Three controllers with very many partitions: start, snapshot, failover, and reloading the log.

The product's code writes the metadata as a snapshot, since a log of so many topics would take an
hour to grow. No broker has the partitions, so that the figures are those of the controllers alone.

* *Start*: all three start from the snapshot; until one is active and has created a topic.
* *Failover*: ``kill -9`` of the active controller.
* *Back*: the killed controller, until it has the log and follows.
* *Cut off*: the others are paused (SIGSTOP) until the leader has resigned with an uncommitted
  decision, then resumed; until one is active. No other entry replaced that decision.
* *Rebuilt*: the others are killed, and commit a decision after their restart, while the resigned
  leader is paused. Then that leader discards its state and reads the log again.
* *Snapshot*: all three write one in the background while one makes decisions. A topic with many
  partitions makes the snapshot due.

CPU seconds are reported, too, since other load affects them less than the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from kraftjbod.core.errors import KraftJbodError
from kraftjbod.core.ids import BrokerId, LeaderEpoch, PartitionEpoch, TopicId
from kraftjbod.local.active_controller import activated_after, active_controller
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.metadata.record_codec import decode_entry, encode_entry_in_slices
from kraftjbod.metadata.records import (
    PartitionRecord,
    Record,
    TopicRecord,
)
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.machine.messages import HardState
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR
from kraftjbod.storage.vfs import RealVfs
from tests.bench.controller import control_plane
from tests.bench.controller.scripted_broker import BROKERS, create_a_topic, directory_of
from tests.bench.figures import Report, cpu_s, rss_mb, running_cluster

_TOPIC_PARTITIONS: Final = 500
_SNAPSHOT_KEY: Final = "metadata.log.max.record.bytes.between.snapshots"
_CONFIG: Final = {
    "broker.session.timeout.ms": "3600000",
    "broker.reconnect.grace.ms": "0",
    _SNAPSHOT_KEY: str(12 * 1024),
}
_DEADLINE_S: Final = 900.0
_POLL_S: Final = 0.05
_IN_VAIN_MS: Final = 3_000


def measure(report: Report, partitions: int) -> None:
    with running_cluster(brokers=0, dirs=0, controllers=3, controller_config=_CONFIG) as local:
        _until(lambda: _active(local) is not None)
        control_plane.run_scripted_broker(local, 0)  # Registers the brokers of the replicas.
        asyncio.run(local.stop())
        size_mb = _write(local, partitions) / 1e6
        what = f"{partitions:,} partitions"
        report.add(f"{what}: snapshot", size_mb, "MB")
        _start(report, what, local)
        _fail_over(report, what, local)
        _cut_off(report, what, local)
        _rebuild(report, what, local)
        _snapshot(report, what, local)


def _start(report: Report, what: str, local: ClusterProcesses) -> None:
    began_s = time.time()
    for controller in local.controllers.values():
        controller.start()
    new_s = _activated(local, began_s) - began_s
    cpu = max(cpu_s([one]) for one in local.controllers.values())
    how = f"all three at once, from their snapshots; CPU of one: {cpu:.1f} s"
    report.add(f"{what}: start until one is active", new_s, "s", how=how)
    _until(
        lambda: all(bool(one.events("controller_started")) for one in local.controllers.values())
    )
    asyncio.run(create_a_topic(_addresses(local)))
    rss = max(rss_mb(one) for one in local.controllers.values())
    report.add(f"{what}: RSS of a controller", rss, "MB")


def _fail_over(report: Report, what: str, local: ClusterProcesses) -> None:
    active = _required(local)
    others = [one for one in local.controllers.values() if one is not active]
    cpu, began_s = cpu_s(others), time.time()
    active.kill()
    new_s = _activated(local, began_s) - began_s
    asyncio.run(_create_another(others))
    written_s = time.time() - began_s
    how = f"kill -9 of the active one; CPU of the others: {cpu_s(others) - cpu:.2f} s"
    report.add(f"{what}: failover until another is active", new_s, "s", how=how)
    report.add(f"{what}: failover until a topic is made", written_s, "s")
    began_s, lives = time.time(), len(active.events("controller_started"))
    active.start()
    _until(lambda: len(active.events("controller_started")) > lives)
    how = f"CPU: {cpu_s([active]):.1f} s"
    report.add(f"{what}: the killed one is back", time.time() - began_s, "s", how=how)


def _cut_off(report: Report, what: str, local: ClusterProcesses) -> None:
    active = _required(local)
    others = [one for one in local.controllers.values() if one is not active]
    for one in others:
        os.kill(one.pid or 0, signal.SIGSTOP)
    try:
        _decide_in_vain(active)
    finally:
        for one in others:
            os.kill(one.pid or 0, signal.SIGCONT)
    began_s = time.time()
    new_s = _activated(local, began_s) - began_s
    asyncio.run(_create_another(list(local.controllers.values())))
    how = "its majority is back, and has what was in doubt in its sockets"
    report.add(f"{what}: cut off, until one is active again", new_s, "s", how=how)
    report.add(f"{what}: cut off, until a topic is made", time.time() - began_s, "s")


def _rebuild(report: Report, what: str, local: ClusterProcesses) -> None:
    active = _required(local)
    others = [one for one in local.controllers.values() if one is not active]
    before, cpu = len(active.events("metadata_reloaded")), cpu_s([active])
    for one in others:
        one.kill()
    _decide_in_vain(active)
    os.kill(active.pid or 0, signal.SIGSTOP)
    try:
        began_s = time.time()
        for one in others:
            one.start()
        _activated(local, began_s)
        asyncio.run(_create_another(others))
    finally:
        os.kill(active.pid or 0, signal.SIGCONT)
    _until(lambda: len(active.events("metadata_reloaded")) > before)
    took_s = active.events("metadata_reloaded")[-1]["took_ms"] / 1e3
    how = f"what was not committed is forgotten; CPU: {cpu_s([active]) - cpu:.1f} s"
    report.add(f"{what}: state read again", took_s, "s", how=how)


def _decide_in_vain(active: DaemonProcess) -> None:
    """Send the active controller a request until it resigns, because no voter acknowledges."""
    before = len(active.events("raft_leadership_lost"))
    asking = threading.Thread(target=_ask_in_vain, args=(active.address,), daemon=True)
    asking.start()
    _until(lambda: len(active.events("raft_leadership_lost")) > before)
    asking.join()


def _snapshot(report: Report, what: str, local: ClusterProcesses) -> None:
    all_three = list(local.controllers.values())
    assert not any(one.events("metadata_snapshot_written") for one in all_three), "too soon"
    cpu, began_s = cpu_s(all_three), time.time()
    asyncio.run(create_a_topic(_addresses(local), "large", partitions=_TOPIC_PARTITIONS))
    # The leader begins its snapshot at its next decision.
    asyncio.run(_create_another(all_three))
    answered_s = time.time() - began_s
    _until(lambda: all(bool(one.events("metadata_snapshot_written")) for one in all_three))
    how = (
        f"in the background, of all three at once; CPU of all: {cpu_s(all_three) - cpu:.1f} s; "
        f"a topic, and a large one, were made meanwhile in {answered_s:.2f} s"
    )
    report.add(f"{what}: snapshots written", time.time() - began_s, "s", how=how)


def _write(local: ClusterProcesses, partitions: int) -> int:
    """Write the same snapshot for all three controllers, at the end of the longest log."""
    stores = {node_id: _store(one) for node_id, one in local.controllers.items()}
    logs = {node_id: store.open() for node_id, store in stores.items()}
    entries = max((log.entries for log in logs.values()), key=len)
    state = MetadataState()
    for entry in entries:
        records = decode_entry(entry.payload)
        state.replay(records, offset=entry.offset, epoch=entry.term, delta=MetadataDelta())
    topics = partitions // _TOPIC_PARTITIONS
    count = state.snapshot_record_count() + topics * (1 + _TOPIC_PARTITIONS)
    end = entries[-1]
    parts = {node_id: one.begin_snapshot(end.offset, end.term) for node_id, one in stores.items()}
    records = itertools.chain(state.snapshot_records(), _topics(topics))
    size_bytes = 0
    for piece in encode_entry_in_slices(records, count, 10_000, state.metadata_version):
        size_bytes += len(piece)
        for part in parts.values():
            part.append_piece(piece)
    for node_id, store in stores.items():
        # The controller that stopped first lacks the terms of later leaders.
        if logs[node_id].hard_state.term < end.term:
            store.write_hard_state(HardState(term=end.term))
        store.install_snapshot(parts[node_id].finish(), replaces_log=True)
        store.close()
        for path in local.controllers[node_id].files.metadata_dir.rglob("*"):
            local.privileges.give(path)
    return size_bytes


def _topics(count: int) -> Iterator[Record]:
    for number in range(count):
        topic_id = TopicId(f"bench-{number}".encode().rjust(16, b"~"))
        yield TopicRecord(name=f"many-{number}", topic_id=topic_id)
        for index in range(_TOPIC_PARTITIONS):
            first = index % len(BROKERS)
            replicas = tuple(map(BrokerId, (*BROKERS[first:], *BROKERS[:first])))
            yield PartitionRecord(
                topic_id=topic_id,
                partition_id=index,
                replicas=replicas,
                directories=tuple(directory_of(broker, index % 2) for broker in replicas),
                isr=replicas,
                leader=replicas[0],
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
            )


def _store(controller: DaemonProcess) -> RaftLogStore:
    return RaftLogStore(
        vfs=RealVfs(),
        directory=str(controller.files.metadata_dir / CLUSTER_METADATA_DIR),
        segment_bytes=1 << 30,
        retained_entries=0,
    )


def _ask_in_vain(address: str) -> None:
    with contextlib.suppress(KraftJbodError, TimeoutError):
        asyncio.run(create_a_topic(address, f"in-vain-{time.time_ns()}", timeout_ms=_IN_VAIN_MS))


async def _create_another(controllers: list[DaemonProcess]) -> None:
    addresses = ",".join(one.address for one in controllers)
    await create_a_topic(addresses, f"another-{time.time_ns()}")


def _addresses(local: ClusterProcesses) -> str:
    return ",".join(one.address for one in local.controllers.values())


def _active(local: ClusterProcesses) -> DaemonProcess | None:
    return active_controller(local.controllers.values())


def _required(local: ClusterProcesses) -> DaemonProcess:
    _until(lambda: _active(local) is not None)
    active = _active(local)
    assert active is not None
    return active


def _activated(local: ClusterProcesses, began_s: float) -> float:
    """Return the time (wall clock) when a controller became active after ``began_s``."""
    controllers = local.controllers.values()
    _until(lambda: activated_after(controllers, began_s) is not None)
    return activated_after(controllers, began_s) or 0.0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {_DEADLINE_S:.0f} s"
        time.sleep(_POLL_S)
