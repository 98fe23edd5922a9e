"""``QuorumController``: the queue, the wait for commit, and periodic passes, over a real thread."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from errno import ENOSPC
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.controller import quorum_controller, replication_control
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import (
    ErrorCode,
    ForeignMetadataError,
    InconsistentStorageError,
    KafkaStorageError,
    LogDirImpairedError,
    NotControllerError,
    OperatingError,
    StartupError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.metadata.record_codec import EntryReader, decode_entry, encode_entry
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
)
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest, FetchMetadataResponse
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.golden.transcript import directory
from tests.unit.broker.gates import settle, until
from tests.unit.controller.conftest import ONE, TWO, Node


async def test_start_on_empty_log_writes_feature_level(node: Node) -> None:
    assert node.managers.state.features == {"metadata.version": 17}
    figures = node.metrics.snapshot()
    assert figures["LastCommittedRecordOffset"] == figures["LastAppliedRecordOffset"] == 1
    assert figures["NewActiveControllersCount"] == 1


async def test_registrations_in_flight_get_the_same_epoch(node: Node) -> None:
    epochs = await asyncio.gather(node.register("ab"), node.register("ab"))
    assert epochs[0] == epochs[1], "the same incarnation, registered twice"


async def test_repeated_heartbeat_waits_for_commit_of_the_first(vfs: FaultVfs, node: Node) -> None:
    epoch = await node.register("ab")
    await node.heartbeat(epoch)
    hang = vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"sync"})))
    first = asyncio.create_task(node.heartbeat(epoch, "a"))
    await asyncio.sleep(0)
    repeated = asyncio.create_task(node.heartbeat(epoch, "a"))
    await until(lambda: hang.hits)
    await settle()
    assert not first.done()
    assert not repeated.done()
    assert node.managers.state.brokers[ONE].log_dirs == (directory("b"),)
    committed = node.metrics.snapshot()["LastCommittedRecordOffset"]
    fetched = await node.controller.handle(
        FetchMetadataRequest(
            broker_id=ONE, fetch_offset=int(committed) + 1, max_wait_ms=0, max_bytes=1000
        )
    )
    assert isinstance(fetched, FetchMetadataResponse)
    assert not fetched.entries, "followers see committed entries only"
    with capture_logs() as events:
        vfs.release()
        for heartbeat in (first, repeated):
            with pytest.raises(KafkaStorageError):
                await heartbeat
        with pytest.raises(KafkaStorageError):
            await node.controller.wait_failed()
    assert "metadata_log_failed" in {event["event"] for event in events}


async def test_refused_request_writes_no_record(node: Node) -> None:
    offset = node.managers.state.offset
    with pytest.raises(OperatingError) as refused:
        await node.heartbeat(BrokerEpoch(5))
    assert refused.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert node.managers.state.offset == offset


async def test_metadata_log_id_survives_restart_and_changes_with_fork(vfs: FaultVfs) -> None:
    node = Node(vfs)
    await node.controller.start()
    log_id = node.managers.state.metadata_log_id
    assert log_id is not None
    ask = FetchMetadataRequest(broker_id=ONE, fetch_offset=1, max_wait_ms=0, max_bytes=1000)
    fetched = await node.controller.handle(ask)
    assert isinstance(fetched, FetchMetadataResponse)
    assert fetched.metadata_log_id == log_id
    other = ask.model_copy(update={"metadata_log_id": Uuid(b"o" * 16)})
    ahead = ask.model_copy(update={"metadata_log_id": log_id, "fetch_offset": 99})
    with capture_logs() as events:
        for foreign in (other, ahead, other):
            with pytest.raises(ForeignMetadataError):
                await node.controller.handle(foreign)
    logged = [event for event in events if event["event"] == "broker_knows_other_metadata"]
    assert len(logged) == 1, "brokers retry often"
    await node.controller.stop()
    node.log_dir.close()
    for fork in (False, True):
        # Other bytes than the first controller drew.
        again = Node(vfs, random_byte=b"\x77")
        await again.controller.start(fork=again.driver.voters if fork else None)
        assert (again.managers.state.metadata_log_id == log_id) is not fork
        await again.controller.stop()
        again.log_dir.close()


async def test_log_without_id_gets_one_at_start(vfs: FaultVfs) -> None:
    node = Node(vfs)
    await node.controller.start()
    await node.register("ab")
    await node.controller.stop()
    node.log_dir.close()
    # Write the same entries without the id, as earlier software did.
    store = RaftLogStore(vfs=vfs, directory="/d1/log", segment_bytes=1000, retained_entries=0)
    entries = store.open().entries
    store.append_entries(
        [dataclasses.replace(e, payload=_without_log_id(e.payload)) for e in entries], 0
    )
    store.close()
    again = Node(vfs)
    await again.controller.start()
    state = again.managers.state
    assert state.metadata_log_id is not None
    assert state.features == {"metadata.version": 17}
    assert ONE in state.brokers
    await again.controller.stop()
    again.log_dir.close()


def _without_log_id(payload: bytes) -> bytes:
    records = decode_entry(payload)
    without = [
        dataclasses.replace(record, metadata_log_id=None)
        if isinstance(record, FeatureLevelRecord)
        else record
        for record in records
    ]
    return encode_entry(without, LATEST_METADATA_VERSION)


def _decided(node: Node, *records: Record, is_atomic: bool = True) -> Callable[..., Any]:
    result = ControllerResult(
        records=records,
        response=m.DeleteTopicsResponseRpc(topics=()),
        is_atomic=is_atomic,
    )
    return lambda request, **_: result


DELETE_NOTHING = m.DeleteTopicsRequestRpc(topics=())


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(topic_id=TopicId(bytes(16))),
        PartitionChangeRecord(topic_id=TopicId(bytes(16)), partition_id=0, leader=ONE),
        BrokerRegistrationChangeRecord(broker_id=TWO, broker_epoch=BrokerEpoch(1), fenced=True),
        FeatureLevelRecord(name="metadata.version", feature_level=9999),
    ],
    ids=["topic", "partition", "broker", "level"],
)
async def test_unreplayable_decision_is_refused_and_not_written(
    vfs: FaultVfs, node: Node, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    """Before, the record stayed in the log permanently and failed at every start."""
    offset = node.managers.state.offset
    before = node.managers.state.copy()
    with monkeypatch.context() as patched, capture_logs() as events:
        patched.setattr(node.managers, "decide", _decided(node, record))
        with pytest.raises(OperatingError, match="cannot be replayed") as refused:
            await node.controller.handle(DELETE_NOTHING)
    assert refused.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "decision_not_replayable" in {event["event"] for event in events}
    assert node.metrics.snapshot()["UnreplayableDecisionCount"] == 1
    assert node.managers.state.offset == offset
    assert list(node.managers.state.snapshot_records()) == list(before.snapshot_records())
    await node.heartbeat(await node.register("ab"))
    await node.controller.stop()
    again = Node(vfs)
    await again.controller.start()
    assert set(again.managers.state.brokers) == {ONE}
    await again.controller.stop()


async def test_replay_failure_stops_controller_without_writing_the_record(
    vfs: FaultVfs, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_more: object) -> None:
        raise ZeroDivisionError

    offset = node.managers.state.offset
    with monkeypatch.context() as patched:
        patched.setattr(node.managers.index, "apply", fail)
        with pytest.raises(ZeroDivisionError):
            await node.register("ab")
    with pytest.raises(NotControllerError):
        await node.register("ab")
    with pytest.raises(ZeroDivisionError):
        await node.controller.wait_failed()
    await node.controller.stop()
    again = Node(vfs)
    await again.controller.start()
    assert not again.managers.state.brokers
    assert again.managers.state.offset == offset + 1, "only the first entry of its term"
    await again.controller.stop()


async def test_unreplayable_entry_in_log_fails_start_with_instruction(
    vfs: FaultVfs, node: Node
) -> None:
    bad = RemoveTopicRecord(topic_id=TopicId(bytes(16)))
    proposal = node.driver.propose(encode_entry([bad], LATEST_METADATA_VERSION))
    offset = proposal.entry.offset
    with pytest.raises(InconsistentStorageError):
        await node.driver.wait_failed()
    again = Node(vfs)
    with pytest.raises(InconsistentStorageError, match=f"entry {offset} .*restore the metadata"):
        await again.controller.start()


async def test_decision_too_large_for_one_entry_is_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = node.managers.state.offset
    values = [
        ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="t", name=name, value=value)
        for name, value in (("a", "v" * 600_000), ("b", "v" * 600_000), ("c", "v" * 1_100_000))
    ]
    for records, is_atomic in ((values[:2], True), (values[2:], True), (values[2:], False)):
        with monkeypatch.context() as patched:
            patched.setattr(node.managers, "decide", _decided(node, *records, is_atomic=is_atomic))
            with pytest.raises(OperatingError, match="ask for less at once") as refused:
                await node.controller.handle(DELETE_NOTHING)
        assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert node.managers.state.offset == offset
    assert not node.managers.state.configs


async def test_large_changes_of_broker_are_written_in_several_entries(
    vfs: FaultVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes the registration, whose epoch is the offset of its entry."""
    node = Node(vfs)
    await node.controller.start()
    await node.heartbeat(await node.register("ab"))
    await node.heartbeat(await node.register("cd", TWO), broker_id=TWO)
    topic = m.NewTopic(name="t", assignments={index: (ONE, TWO) for index in range(100)})
    await node.controller.handle(m.CreateTopicsRequestRpc(topics=(topic,)))
    created = node.managers.state.offset
    monkeypatch.setattr(quorum_controller, "MAX_ENTRY_BYTES", 500)
    state, offset = node.managers.state, node.managers.state.offset
    await node.heartbeat(state.brokers[ONE].epoch, "ab")
    assert state.offset > offset + 3
    assert state.brokers[ONE].fenced
    assert {partition.leader for _, partition in state.partitions()} == {TWO}
    await node.heartbeat(state.brokers[TWO].epoch, broker_id=TWO)
    offset = state.offset
    node.clock.ms += 100_000
    epoch = await node.register("xy", TWO, incarnation=b"2")
    assert state.offset > offset + 3
    assert state.brokers[TWO].epoch == epoch
    await until(lambda: not node.managers.has_follow_ups)
    await until(lambda: node.driver.committed_offset == state.offset)
    rebuilt = list(state.snapshot_records())
    await node.controller.stop()
    again = Node(vfs)
    await again.controller.start()
    assert list(again.managers.state.snapshot_records()) == rebuilt
    entries = await again.driver.committed.read(0, 1 << 30)
    assert max(len(entry.payload) for entry in entries if entry.offset > created) <= 500
    await again.controller.stop()


async def test_entries_before_a_large_registration_elect_no_replica_of_its_broker(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may die before it writes the registration, which brings the directory back."""
    epoch = await node.register("a")
    await node.heartbeat(epoch)
    topic = m.NewTopic(name="t", assignments={index: (ONE,) for index in range(100)})
    await node.controller.handle(m.CreateTopicsRequestRpc(topics=(topic,)))
    await node.register("ab")
    await node.heartbeat(epoch, offline="a")
    state, offset = node.managers.state, node.managers.state.offset
    assert not any(partition.has_leader for _, partition in state.partitions())
    monkeypatch.setattr(quorum_controller, "MAX_ENTRY_BYTES", 500)
    await node.register("ab")
    await until(lambda: node.managers.index.led_count(ONE) == 100)
    await until(lambda: node.driver.committed_offset == state.offset)
    read = await node.driver.committed.read(offset + 1, 1 << 30)
    entries = [decode_entry(entry.payload) for entry in read]
    registrations = [
        index
        for index, entry in enumerate(entries)
        if any(isinstance(record, RegisterBrokerRecord) for record in entry)
    ]
    assert len(registrations) == 1 and len(entries) > 3
    earlier = [record for entry in entries[: registrations[0]] for record in entry]
    assert not [r for r in earlier if isinstance(r, PartitionChangeRecord) and r.leader == ONE]


async def test_dynamic_controller_config_applies_at_once_and_after_restart(
    vfs: FaultVfs,
) -> None:
    """The interval of snapshots and the preferred leader election follow the configuration."""
    node = Node(vfs, level=33)
    await node.controller.start()
    for key, value in (
        ("auto.leader.rebalance.enable", "false"),
        ("metadata.log.max.record.bytes.between.snapshots", "1"),
    ):
        change = c.ConfigChange(name=key, operation=0, value=value)
        resource = c.AlteredResource(resource_type=4, name="", changes=(change,))
        await node.controller.handle(c.IncrementalAlterConfigsRequestRpc(resources=(resource,)))
    while await node.driver.committed.newest_snapshot() is None:
        await node.register("a")
        await asyncio.sleep(0.01)
    passes = 0

    def elect_preferred() -> ControllerResult[None]:
        nonlocal passes
        passes += 1
        return ControllerResult(response=None)

    node.managers.elect_preferred = elect_preferred  # type: ignore[method-assign]
    await asyncio.sleep(0.05)
    assert passes == 0
    await node.controller.stop()
    again = Node(vfs, level=33)
    await again.controller.start()
    assert not again.controller.settings.auto_leader_rebalance_enable
    assert again.controller.settings.metadata_log_max_record_bytes_between_snapshots == 1
    await again.controller.stop()


async def test_metadata_above_64_mib_is_restored_and_fetched_by_brokers(
    vfs: FaultVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, such metadata could be written, but controllers and brokers could not start with
    it."""
    node = Node(vfs, max_fetch_bytes=8 << 20)
    await node.controller.start()
    size_bytes = 0
    while size_bytes <= 64 << 20:
        value = bytes([97 + size_bytes % 26]).decode() * 1_000_000
        record = ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name=f"t{size_bytes}",
            name="a",
            value=value,
        )
        with monkeypatch.context() as patched:
            patched.setattr(node.managers, "decide", _decided(node, record))
            await node.controller.handle(DELETE_NOTHING)
        size_bytes += len(value)
    node.controller.on_snapshot_due()
    while await node.driver.committed.newest_snapshot() is None:
        await asyncio.sleep(0.01)
    configs, offset = node.managers.state.configs, node.managers.state.offset
    await node.controller.stop()
    again = Node(vfs, max_fetch_bytes=8 << 20)
    await again.controller.start()
    assert again.managers.state.configs == configs
    follower, reader, position = MetadataState(), EntryReader(), 0
    while position >= 0:
        answer = await again.controller.handle(
            FetchMetadataRequest(
                broker_id=ONE,
                fetch_offset=0,
                max_wait_ms=0,
                max_bytes=8 << 20,
                snapshot_offset=offset,
                snapshot_position=position,
            )
        )
        assert isinstance(answer, FetchMetadataResponse)
        assert 0 < len(answer.snapshot_chunk) <= 1 << 20
        records = reader.feed(answer.snapshot_chunk)
        follower.replay_part(records, offset=offset, delta=MetadataDelta())
        position = answer.snapshot_next_position
    reader.end()
    assert follower.configs == configs
    await again.controller.stop()


async def test_controller_pass_that_cannot_be_written_is_logged(vfs: FaultVfs) -> None:
    node = Node(vfs, max_pending=1)
    await node.controller.start()
    epoch = await node.register("ab")
    await node.heartbeat(epoch)
    vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"sync"})))
    stuck = asyncio.create_task(node.heartbeat(epoch, "a"))
    await asyncio.sleep(0)
    with capture_logs() as events:
        await node.pass_time_until(
            lambda: "controller_pass_failed" in {event["event"] for event in events}
        )
        vfs.release()
        with pytest.raises(KafkaStorageError):
            await stuck
        await node.controller.stop()
    node.log_dir.close()


async def test_follow_up_that_cannot_be_written_is_repeated(
    vfs: FaultVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the partitions of a later part would keep their dead leader."""
    monkeypatch.setattr(replication_control, "MAX_FOLLOWED_AT_ONCE", 3)
    node = Node(vfs, max_pending=1)
    await node.controller.start()
    epoch = await node.register("ab")
    await node.heartbeat(epoch)
    await node.heartbeat(await node.register("cd", TWO), broker_id=TWO)
    topic = m.NewTopic(name="t", assignments={index: (ONE, TWO) for index in range(10)})
    await node.controller.handle(m.CreateTopicsRequestRpc(topics=(topic,)))

    def leaders() -> list[BrokerId]:
        return [partition.leader for _, partition in node.managers.state.partitions()]

    vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"sync"})))
    with capture_logs() as events:
        stuck = asyncio.create_task(node.heartbeat(epoch, "ab"))
        await until(lambda: "controller_pass_failed" in {event["event"] for event in events})
        assert sorted(leaders()) == [ONE] * 7 + [TWO] * 3
        vfs.release()
        assert (await stuck).is_fenced
        await until(lambda: leaders() == [TWO] * 10)
    await node.controller.stop()
    node.log_dir.close()


NEW_TOPIC = m.CreateTopicsRequestRpc(topics=(m.NewTopic(name="t", num_partitions=1),))


def _reassign(replicas: tuple[BrokerId, ...] | None) -> c.AlterPartitionReassignmentsRequestRpc:
    requested = c.ReassignedPartition(topic="before", partition=0, replicas=replicas)
    return c.AlterPartitionReassignmentsRequestRpc(partitions=(requested,))


def _fill(node: Node, vfs: FaultVfs) -> None:
    """Let the next write fail with ENOSPC.

    Later writes succeed only within the space of the reserve."""
    memory = vfs.inner
    assert isinstance(memory, MemVfs)
    memory.usable_bytes = 0
    if node.log_dir.reserve_bytes:
        vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"}), sticky=False))
    else:
        memory.capacity_bytes = 0


async def test_saturated_metadata_dir_refuses_growing_requests_only(vfs: FaultVfs) -> None:
    node = Node(vfs, reserve_bytes=20_000)
    await node.log_dir.secure_reserve()
    await node.controller.start()
    epoch = await node.register("ab")
    await node.heartbeat(epoch)
    await node.heartbeat(await node.register("cd", TWO), broker_id=TWO)
    before = m.NewTopic(name="before", assignments={0: (ONE,)})
    await node.controller.handle(m.CreateTopicsRequestRpc(topics=(before,)))
    _fill(node, vfs)
    with capture_logs():
        await node.heartbeat(epoch, "a")
    assert node.log_dir.state is LogDirState.SATURATED
    offset = node.managers.state.offset
    more = m.MorePartitions(name="before", count=2)
    for request in (NEW_TOPIC, m.CreatePartitionsRequestRpc(topics=(more,)), _reassign((TWO,))):
        with pytest.raises(LogDirImpairedError, match=r"grow .*/d1 is full"):
            await node.controller.handle(request)
    assert node.managers.state.offset == offset
    assert set(node.managers.state.topic_ids) == {"before"}, "the refused requests had no effect"
    only_asked = NEW_TOPIC.model_copy(update={"validate_only": True})
    await node.controller.handle(only_asked)
    cancelled = await node.controller.handle(_reassign(None))
    assert isinstance(cancelled, c.AlterPartitionReassignmentsResponseRpc), "a cancel does not grow"
    await node.controller.handle(m.DeleteTopicsRequestRpc(topics=(m.TopicRef(name="before"),)))
    await node.register("cd", TWO)
    assert not node.managers.state.topics
    assert node.managers.state.offset == offset + 2
    await node.controller.stop()
    node.log_dir.close()


async def test_heartbeat_without_change_is_answered_without_disk_space(
    vfs: FaultVfs, node: Node
) -> None:
    epochs = {ONE: await node.register("ab"), TWO: await node.register("cd", TWO)}
    for broker_id, epoch in epochs.items():
        await node.heartbeat(epoch, broker_id=broker_id)
    _fill(node, vfs)
    with capture_logs() as events:
        stuck = asyncio.create_task(node.heartbeat(epochs[ONE], "a"))
        while "metadata_log_waits" not in {event["event"] for event in events}:
            await asyncio.sleep(0)
        answer = await node.heartbeat(epochs[TWO], broker_id=TWO)
        assert not answer.is_fenced
        repeated = asyncio.create_task(node.heartbeat(epochs[ONE], "a"))
        offset = node.managers.state.offset
        with pytest.raises(LogDirImpairedError, match="has to be written"):
            await node.heartbeat(epochs[TWO], "c", TWO)
        assert node.managers.state.offset == offset, "refused before the replay"
        await node.pass_time_until(
            lambda: "controller_passes_wait" in {event["event"] for event in events}
        )
        for _ in range(5):
            node.clock.ms += 200
            await asyncio.sleep(0.25)
        logged = [event["event"] for event in events]
        assert logged.count("controller_passes_wait") == 1
        assert logged.count("broker_session_expired") <= 1
        assert not stuck.done(), "the record is not on the disk"
        assert not repeated.done(), "the state in the response is not on the disk"
        vfs.inner.capacity_bytes = None
        assert not (await stuck).is_fenced
        await repeated
    committed = node.metrics.snapshot()["LastCommittedRecordOffset"]
    assert committed == node.managers.state.offset


async def test_start_without_space_for_first_records_fails(vfs: FaultVfs) -> None:
    node = Node(vfs)
    memory = vfs.inner
    assert isinstance(memory, MemVfs)
    memory.usable_bytes = 500
    # The write of term and vote fails; the voters are written before.
    vfs.inject(
        Fault(errno=ENOSPC, path="*quorum-state*", kinds=frozenset({"write_at"}), sticky=False)
    )
    on_leader = node.controller.on_leader

    def lead_after_a_check(term: int) -> None:
        node.log_dir.space = memory.space("/d1")
        on_leader(term)

    node.controller.on_leader = lead_after_a_check  # type: ignore[method-assign]
    with capture_logs(), pytest.raises(StartupError, match=r"/d1 is (full|saturated)"):
        await node.controller.start()
    await node.controller.stop()
    node.log_dir.close()


async def test_registration_refused_without_space_may_be_retried(vfs: FaultVfs, node: Node) -> None:
    """A registration that was not written does not count as another live incarnation."""
    epoch = await node.register("ab")
    _fill(node, vfs)
    with capture_logs() as events:
        stuck = asyncio.create_task(node.heartbeat(epoch, "a"))
        while "metadata_log_waits" not in {event["event"] for event in events}:
            await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(LogDirImpairedError):
                await node.register("cd", TWO)
        vfs.inner.capacity_bytes = None
        await stuck
        assert await node.register("cd", TWO) > epoch
