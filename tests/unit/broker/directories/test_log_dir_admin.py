"""Reattach, add and forget directories of one broker with a scripted controller.

tests/integration/directories/test_log_dirs_come_back.py covers clusters and real disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.directories.log_dir_admin import LogDirOperation, LogDirOutcome
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import UNASSIGNED_DIR, BrokerEpoch, TopicId, TopicPartition, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    ResourceType,
)
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    RpcRequest,
    RpcResponse,
)
from kraftjbod.storage.identity.dir_opener import DirOpener
from kraftjbod.storage.identity.known_dirs import read_known_dirs
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.vfs import write_atomically
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import CLUSTER_ID, batch, directory_id, format_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    accept,
    brokers,
    dir_of,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

ONE, TWO = dir_of(1, 1), dir_of(1, 2)
WAIT_MS = 60_000


def in_order(request: RpcRequest) -> RpcResponse:
    match request:
        case BrokerRegistrationRequest():
            return BrokerRegistrationResponse(broker_epoch=BrokerEpoch(0))
        case BrokerHeartbeatRequest():
            return BrokerHeartbeatResponse(
                is_caught_up=True, is_fenced=False, should_shut_down=False
            )
        case _:
            return accept(request)


@contextlib.asynccontextmanager
async def registered(
    *vfss: FaultVfs,
    answer: Any = in_order,
    io_timeout_ms: str = "30000",
    opens: bool = True,
    **overrides: str,
) -> AsyncIterator[BrokerRig]:
    """A registered broker that handles failures of its directories."""
    disks = vfss or (FaultVfs(MemVfs()), FaultVfs(MemVfs()))
    async with brokers(
        1, *disks, answer=answer, opens=opens, log_dir_io_timeout_ms=io_timeout_ms, **overrides
    ) as (rig,):
        rig.parts.lifecycle.start()
        await rig.parts.lifecycle.registered()
        rig.tasks.start(rig.parts.state_handler.run_handler(), "log_dir_state_handler")
        try:
            yield rig
        finally:
            await rig.parts.lifecycle.close()


async def perform(
    rig: BrokerRig, operation: str, target: str, *, force: bool = False, timeout_ms: int = WAIT_MS
) -> LogDirOutcome:
    return await rig.parts.admin.perform(
        LogDirOperation[operation.upper()], target, force=force, timeout_ms=timeout_ms
    )


async def refused(rig: BrokerRig, operation: str, target: str, **more: Any) -> str:
    return (await refusal(rig, operation, target, **more)).message


async def refusal(rig: BrokerRig, operation: str, target: str, **more: Any) -> OperatingError:
    with pytest.raises(OperatingError) as caught:
        await perform(rig, operation, target, **more)
    return caught.value


def clean_epochs(rig: BrokerRig) -> tuple[BrokerEpoch, ...]:
    return registrations(rig)[-1].clean_shutdown_epochs


def registrations(rig: BrokerRig) -> list[BrokerRegistrationRequest]:
    return [r for r in rig.controller.seen if isinstance(r, BrokerRegistrationRequest)]


async def die(rig: BrokerRig, number: int = 2) -> None:
    """Take a directory offline as a health check would; the disk itself stays usable."""
    rig.dirs[number - 1].go_offline("the test failed it")
    await asyncio.sleep(0)
    while rig.logs.handles_in(rig.dirs[number - 1]):
        await asyncio.sleep(0)


async def appended(rig: BrokerRig, count: int = 3) -> None:
    for _ in range(count):
        answer = await rig.ask(produce(batch(), acks=1), version=12)
        (result,) = answer.responses[0].partition_responses
        assert result.error_code == ErrorCode.NONE, result


def log_end(rig: BrokerRig, tp: TopicPartition = TP) -> int:
    handle = rig.logs.get(tp)
    assert handle is not None
    return handle.log_end_offset


# --- reattach ------------------------------------------------------------------------------------


async def test_reattach_directory_returns_with_its_replicas() -> None:
    async with registered() as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        await appended(rig)
        await die(rig)
        assert rig.parts.hosted.get(TP).is_offline  # type: ignore[union-attr]
        with capture_logs() as logs:
            done = await perform(rig, "reattach", "/d2")
        await rig.parts.publisher.disk_work_done()
        assert (done.directory_id, done.state) == (TWO, "online")
        # The replica may lack acknowledged records, so that it leads only in a new leader epoch.
        assert [e["event"] for e in logs if e["log_level"] in ("warning", "error")] == [
            "replica_awaits_new_leader_epoch"
        ]
        refusal = (await rig.ask(produce(batch(), acks=1), version=12)).responses[0]
        assert refusal.partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await rig.follow(partition(directories=[TWO], epoch=1))
        assert "is back at /d2 with 1 replicas" in done.message
        back = rig.logs.dir_by_id(TWO)
        assert back is not None
        assert back is not rig.dirs[1]
        assert [d.path for d in rig.logs.dirs()] == ["/d1", "/d2"]
        assert log_end(rig) == 3
        await appended(rig)
        assert log_end(rig) == 6
        # The incarnation is the same, and the return is reported once.
        first, last = registrations(rig)
        assert last.incarnation_id == first.incarnation_id
        assert set(last.log_dirs) == {TWO, ONE}


async def test_reattach_of_an_unusable_directory_is_refused_without_changes() -> None:
    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs) as rig:
        said = await refused(rig, "reattach", "/d2")
        assert "is online: only a directory that is OFFLINE is brought back" in said
        assert "is none of this broker's directories" in await refused(rig, "reattach", "/d9")
        await die(rig)
        inner = vfs.inner
        meta = inner.read_if_exists("/d2/meta.properties")
        assert meta is not None
        inner.unlink_if_exists("/d2/meta.properties")
        said = await refused(rig, "reattach", "/d2")
        assert f"directory {TWO} is missing from /d2: there is no meta.properties" in said
        other = meta.decode().replace(str(TWO), str(directory_id(77)))
        write_atomically(inner, "/d2/meta.properties", other.encode())
        said = await refused(rig, "reattach", "/d2")
        assert f"directory {TWO} is missing from /d2: the disk there is" in said
        foreign = meta.decode().replace(CLUSTER_ID, "AAAAAAAAAAAAAAAAAAAAAQ")
        write_atomically(inner, "/d2/meta.properties", foreign.encode())
        assert "belongs to cluster" in await refused(rig, "reattach", "/d2")
        write_atomically(inner, "/d2/meta.properties", meta)
        fault = vfs.inject(Fault(kinds=frozenset({"list_dir"})))
        assert "Input/output error" in await refused(rig, "reattach", "/d2")
        vfs.faults.remove(fault)
        held = inner.try_lock("/d2/.lock")
        assert held is not None
        assert "Failed to acquire lock" in await refused(rig, "reattach", "/d2")
        held.close()
        assert rig.logs.dirs()[1] is rig.dirs[1]
        assert len(registrations(rig)) == 1
        assert (await perform(rig, "reattach", f"dirid:{TWO}")).state == "online"


async def test_reattach_of_a_hanging_directory_is_refused_until_it_answers() -> None:
    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs, io_timeout_ms="2000") as rig:
        vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"exists"})))
        await die(rig)
        said = await refused(rig, "reattach", "/d2")
        assert "did not answer" in said
        assert "still hangs" in await refused(rig, "reattach", "/d2")
        vfs.clear()
        while True:
            with contextlib.suppress(OperatingError):
                await perform(rig, "reattach", "/d2")
                break
            await asyncio.sleep(0.01)


async def test_operations_on_one_directory_are_exclusive() -> None:
    def slow(request: RpcRequest) -> RpcResponse:
        return in_order(request)

    async with registered(answer=slow) as rig:
        await die(rig)
        rig.controller.may_answer.clear()
        said = await refusal(rig, "reattach", "/d2", timeout_ms=20)
        assert said.code is ErrorCode.REQUEST_TIMED_OUT
        assert "takes longer than 20 ms and continues" in said.message
        assert await refused(rig, "forget", "/d2") == "/d2: reattach is under way"
        with capture_logs() as logs:
            rig.controller.may_answer.set()
            while not any(e["event"] == "log_dir_operation_done" for e in logs):
                await asyncio.sleep(0.01)
        assert rig.logs.dirs()[1].state is LogDirState.ONLINE


async def test_reattach_of_a_directory_that_fails_while_loading_leaves_it_offline() -> None:
    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs) as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        await die(rig)
        vfs.inject(Fault(kinds=frozenset({"list_dir"}), path="/d2/t-0"))
        assert "Input/output error" in await refused(rig, "reattach", "/d2")
        assert rig.logs.dirs()[1] is rig.dirs[1]
        assert rig.parts.hosted.get(TP).is_offline  # type: ignore[union-attr]
        assert len(registrations(rig)) == 1
        vfs.clear()
        await perform(rig, "reattach", "/d2")
        assert log_end(rig) == 0


async def test_reattached_copy_of_a_replica_served_elsewhere_is_set_aside() -> None:
    """The replica was recreated in another directory, so that the returning copy is outdated."""
    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs) as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        await appended(rig)
        await die(rig)
        moved = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, directories=(ONE,))
        await rig.follow(moved)
        handle = rig.logs.get(TP)
        assert handle is not None
        assert handle.log_dir is rig.dirs[0]
        with capture_logs() as logs:
            await perform(rig, "reattach", "/d2")
        (found,) = [e for e in logs if e["event"] == "replica_copy_superseded"]
        assert (found["partition"], found["kept"]) == ("t-0", True)
        assert rig.logs.get(TP) is handle
        names = [e.name for e in vfs.inner.list_dir("/d2") if e.is_dir]
        assert [name.endswith("-stray") for name in names] == [True]


async def test_reattached_copy_of_a_recreated_topic_is_set_aside() -> None:
    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs) as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        await appended(rig)
        await die(rig)
        fresh = TopicId(b"u" * 16)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        await rig.follow(topic(topic_id=fresh), partition(topic_id=fresh, directories=[TWO]))
        await perform(rig, "reattach", "/d2")
        await rig.parts.publisher.disk_work_done()
        assert log_end(rig) == 0
        names = [e.name for e in vfs.inner.list_dir("/d2") if e.is_dir]
        assert [name.endswith("-stray") for name in names] == [True]


async def test_reattached_copy_of_a_deleted_topic_is_marked_as_unknown_topic() -> None:
    """The stray names the metadata log that does not contain its topic."""
    log_id = Uuid(b"l" * 16)
    async with registered() as rig:
        life = FeatureLevelRecord(name="metadata.version", feature_level=30, metadata_log_id=log_id)
        await rig.follow(life, topic(), partition(directories=[TWO]))
        await appended(rig)
        await die(rig)
        fresh = TopicId(b"u" * 16)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        await rig.follow(topic(topic_id=fresh), partition(topic_id=fresh, directories=[ONE]))
        await perform(rig, "reattach", "/d2")
        (stray,) = rig.logs.strays.all()
        assert stray.mark is not None
        assert (stray.mark.reason, stray.mark.metadata_log_id) == (
            StrayReason.TOPIC_UNKNOWN,
            log_id,
        )


async def test_replica_in_an_offline_directory_is_not_recreated_when_another_is_added() -> None:
    """The failed disk may hold the only copy; that the replica is new to this broker is no
    excuse."""
    new = MemVfs()
    new.make_dirs("/d3")
    async with registered() as rig:
        rig.disks_at["/d3"] = new
        await rig.follow(topic(), partition(directories=[TWO]))
        await appended(rig)
        await die(rig)
        await perform(rig, "add", "/d3")
        await rig.parts.publisher.disk_work_done()
        assert rig.logs.get(TP) is None
        await perform(rig, "reattach", "/d2")
        assert log_end(rig) == 3


async def test_reattach_loop_retries_and_logs_a_repeated_reason_once() -> None:
    vfs = FaultVfs(MemVfs())
    often = {"log_dir_reattach_interval_ms": "100"}
    async with registered(FaultVfs(MemVfs()), vfs, **often) as rig:
        await die(rig)
        fault = vfs.inject(Fault(kinds=frozenset({"device"})))
        admin = rig.parts.admin
        with capture_logs() as logs:
            trying = asyncio.ensure_future(admin.run_reattachment())
            while sum(e["event"] == "log_dir_operation_refused" for e in logs) < 3:
                await asyncio.sleep(0.005)
            vfs.faults.remove(fault)
            while not any(e["event"] == "log_dir_operation_done" for e in logs):
                await asyncio.sleep(0.005)
            trying.cancel()
        assert sum(e["event"] == "log_dir_still_offline" for e in logs) == 1
        assert all(e["log_level"] == "info" for e in logs)


# --- add -----------------------------------------------------------------------------------------


async def test_added_directory_is_registered_remembered_and_used() -> None:
    new = MemVfs()
    new.make_dirs("/d3")
    async with registered() as rig:
        rig.disks_at["/d3"] = new
        done = await perform(rig, "add", "/d3/")
        assert done.state == "online"
        assert done.message.endswith("add it to log.dirs for the next start")
        assert set(registrations(rig)[-1].log_dirs) == {ONE, TWO, done.directory_id}
        assert "/d3" in registrations(rig)[-1].log_dir_paths
        known = read_known_dirs(rig.dirs[0].vfs, "/d1")
        assert (known.ids["/d3"], known.added) == (done.directory_id, {"/d3"})
        # New replicas are placed in the added directory.
        await rig.follow(topic(), *(partition(n, directories=[UNASSIGNED_DIR]) for n in range(6)))
        assert len(rig.logs.handles_in(rig.logs.dirs()[2])) == 2


async def test_add_of_a_formatted_disk_keeps_its_directory_id() -> None:
    new = MemVfs()
    format_dir(new, "/d3", 99)
    async with registered() as rig:
        rig.disks_at["/d3"] = new
        assert (await perform(rig, "add", "/d3")).directory_id == directory_id(99)


async def test_add_of_an_unusable_directory_is_refused() -> None:
    full, foreign, twin = MemVfs(), MemVfs(), MemVfs()
    full.make_dirs("/full/something")
    foreign.make_dirs("/foreign")
    text = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id=7\ndirectory.id={directory_id(98)}\n"
    write_atomically(foreign, "/foreign/meta.properties", text.encode())
    format_dir(twin, "/twin", 12)
    async with registered() as rig:
        rig.disks_at |= {"/full": full, "/foreign": foreign, "/twin": twin, "/none": MemVfs()}
        for path, said in {
            "/d1": "is already a directory of this broker",
            "/d1/below": "is below the other",
            "/": "is below the other",
            "d3": "not a normalized absolute path",
            "/x/../d3": "not a normalized absolute path",
        }.items():
            assert said in await refused(rig, "add", path), path
        for path, reason in {
            "/none": "/none does not exist",
            "/full": "neither empty nor formatted for this node: it holds something",
            "/foreign": f"directory {directory_id(98)} at /foreign belongs to node 7",
            "/twin": f"directory {TWO} at /twin is already known as /d2",
        }.items():
            with capture_logs() as logs:
                assert f"{path} is refused: name a directory" in await refused(rig, "add", path)
            (found,) = (e for e in logs if e["event"] == "new_log_dir_not_taken")
            assert reason in found["reason"]
        assert len(registrations(rig)) == 1
        assert read_known_dirs(rig.dirs[0].vfs, "/d1").added == frozenset()
        assert len(rig.logs.dirs()) == 2


async def test_add_runs_one_at_a_time() -> None:
    async with registered() as rig:
        for path in ("/d3", "/d4"):
            new = MemVfs()
            new.make_dirs(path)
            rig.disks_at[path] = new
        rig.controller.may_answer.clear()
        assert "continues" in await refused(rig, "add", "/d3", timeout_ms=20)
        assert await refused(rig, "add", "/d4") == "/d4: add is under way"
        with capture_logs() as logs:
            rig.controller.may_answer.set()
            while not any(e["event"] == "log_dir_operation_done" for e in logs):
                await asyncio.sleep(0.01)
        assert (await perform(rig, "add", "/d4")).state == "online"


async def test_add_refused_for_a_cancelled_caller_reports_no_unhandled_error() -> None:
    """The event loop reports an exception that no caller receives, which would end a daemon."""
    async with registered() as rig:
        rig.disks_at["/d3"] = MemVfs()
        rig.disks_at["/d3"].make_dirs("/d3")
        rig.controller.may_answer.clear()
        assert "continues" in await refused(rig, "add", "/d3", timeout_ms=20)
        for steps in range(4):
            asking = asyncio.ensure_future(refused(rig, "add", "/d4"))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
        del asking
        gc.collect()
        rig.controller.may_answer.set()


async def test_add_refused_by_the_controller_is_not_remembered() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        if isinstance(request, BrokerRegistrationRequest) and len(request.log_dirs) > 2:
            raise OperatingError("not in this cluster", code=ErrorCode.INVALID_REQUEST)
        return in_order(request)

    new = MemVfs()
    new.make_dirs("/d3")
    async with registered(answer=refuse) as rig:
        rig.disks_at["/d3"] = new
        with capture_logs() as logs:
            assert "not in this cluster" in await refused(rig, "add", "/d3")
        assert "log_dir_change_refused" in {e["event"] for e in logs}
        assert read_known_dirs(rig.dirs[0].vfs, "/d1").added == frozenset()
        assert len(rig.logs.dirs()) == 2
        # The lock of the directory is free.
        held = new.try_lock("/d3/.lock")
        assert held is not None


# --- forget --------------------------------------------------------------------------------------


async def test_forget_of_an_offline_directory_recreates_its_replicas() -> None:
    async with registered() as rig:
        await rig.follow(
            topic(), partition(replicas=[1, 2], leader=2, isr=[2], directories=[TWO, dir_of(2, 1)])
        )
        await die(rig, 2)
        assert rig.logs.get(TP) is None
        done = await perform(rig, "forget", f"dirid:{TWO}")
        assert (done.directory_id, done.state) == (TWO, "")
        assert "remove /d2 from log.dirs" in done.message
        last = registrations(rig)[-1]
        assert (last.log_dirs, last.forgotten_log_dirs) == ((ONE,), (TWO,))
        assert [d.path for d in rig.logs.dirs()] == ["/d1"]
        await rig.parts.publisher.disk_work_done()
        handle = rig.logs.get(TP)
        assert handle is not None
        assert handle.log_dir.directory_id == ONE


@pytest.mark.parametrize("is_same_topic", [True, False])
async def test_forget_of_the_assigned_directory_serves_the_longest_of_several_copies(
    is_same_topic: bool,
) -> None:
    """The copies stayed aside, and each attempt to create the replica failed until the next start.

    Copies of an earlier topic of that name are not served.
    """
    disks = [FaultVfs(MemVfs()) for _ in range(3)]
    async with registered(*disks) as rig:
        await rig.follow(topic(), partition())
        await appended(rig)
    disks[0].rename("/d1/t-0", "/d1/hidden")
    async with registered(*disks) as rig:
        await rig.logs.create(TP, TOPIC_ID, TWO)
    disks[0].rename("/d1/hidden", "/d1/t-0")
    present = TOPIC_ID if is_same_topic else TopicId(b"n" * 16)
    async with registered(*disks, opens=False) as rig:
        assert list(rig.logs.duplicates) == [TP]
        await die(rig, 3)
        ids = [dir_of(1, 3), dir_of(2, 1)]
        follower = {"replicas": [1, 2], "leader": 2, "isr": [2], "directories": ids}
        rig.replay(topic(topic_id=present), partition(topic_id=present, **follower))
        await rig.parts.leftovers.resolve()
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        assert list(rig.logs.duplicates) == [TP]
        await perform(rig, "forget", "/d3")
        async with asyncio.timeout(30):
            await rig.parts.publisher.disk_work_done()
        handle = rig.logs.get(TP)
        assert handle is not None
        assert (handle.topic_id, handle.log_end_offset) == (present, 3 if is_same_topic else 0)
        assert not rig.logs.duplicates
        strays = [(stray.log_dir.path, stray.topic_id) for stray in rig.logs.strays.all()]
        assert strays == ([] if is_same_topic else [("/d1", TOPIC_ID)])


async def test_forget_with_another_directory_offline_recreates_replicas_once_unassigned() -> None:
    """The other directory may hold the replica until metadata shows it as unassigned."""
    disks = [FaultVfs(MemVfs()) for _ in range(3)]
    async with registered(*disks) as rig:
        await rig.follow(
            topic(), partition(replicas=[1, 2], leader=2, isr=[2], directories=[TWO, dir_of(2, 1)])
        )
        await die(rig, 3)
        await die(rig, 2)
        await perform(rig, "forget", "/d2")
        await rig.parts.publisher.disk_work_done()
        assert rig.logs.get(TP) is None
        await rig.follow(
            PartitionChangeRecord(
                topic_id=TOPIC_ID,
                partition_id=0,
                directories=(UNASSIGNED_DIR, dir_of(2, 1)),
            )
        )
        assert log_end(rig) == 0


async def test_forget_of_the_last_in_sync_copy_needs_force_and_unclean_election() -> None:
    async with registered() as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        assert "is online and holds 1 replicas: drain it first" in await refused(
            rig, "forget", "/d2"
        )
        await die(rig, 2)
        for force in (False, True):
            said = await refused(rig, "forget", "/d2", force=force)
            assert "/d2 holds the last in-sync replica of t-0: repair the disk" in said
        unclean = ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name="t",
            name="unclean.leader.election.enable",
            value="true",
        )
        await rig.follow(unclean)
        assert "t-0" in await refused(rig, "forget", "/d2")
        await perform(rig, "forget", "/d2", force=True)


async def test_forget_visits_only_the_replicas_of_this_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cluster can have a million partitions, which would hold the event loop for a second."""
    async with registered() as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        await die(rig, 2)

        def visit_all(_: MetadataState) -> Iterator[Any]:
            raise AssertionError("all partitions of the cluster are visited")

        monkeypatch.setattr(MetadataState, "partitions", visit_all)
        assert "holds the last in-sync replica of t-0" in await refused(rig, "forget", "/d2")


async def test_forget_of_an_empty_online_directory_closes_it() -> None:
    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs) as rig:
        assert "own metadata" in await refused(rig, "forget", "/d1")
        await perform(rig, "forget", "/d2")
        assert [d.path for d in rig.logs.dirs()] == ["/d1"]
        while (held := vfs.inner.try_lock("/d2/.lock")) is None:
            await asyncio.sleep(0.002)
        held.close()
        assert "/d2" not in read_known_dirs(rig.dirs[0].vfs, "/d1").ids
        assert "cannot be forgotten" in await refused(rig, "forget", "/d1")


async def test_forget_refused_by_the_controller_keeps_the_directory() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        if isinstance(request, BrokerRegistrationRequest) and request.forgotten_log_dirs:
            raise OperatingError("keep it", code=ErrorCode.INVALID_REQUEST)
        return in_order(request)

    async with registered(answer=refuse) as rig:
        with capture_logs():
            assert "keep it" in await refused(rig, "forget", "/d2")
        assert [d.path for d in rig.logs.dirs()] == ["/d1", "/d2"]
        await until(lambda: TWO in registrations(rig)[-1].log_dirs)
        await rig.follow(topic(), partition(directories=[TWO]))
        assert rig.logs.get(TP) is not None


async def test_reattach_without_a_controller_times_out_and_changes_nothing() -> None:
    async with registered(log_dir_registration_timeout_ms="50") as rig:
        await rig.follow(topic(), partition(directories=[TWO]))
        rig.controller.may_answer.clear()
        await die(rig)
        error = await refusal(rig, "reattach", "/d2")
        assert error.code is ErrorCode.NOT_CONTROLLER, "unlike an operation that continues"
        assert "acknowledged it within log.dir.registration.timeout.ms=50" in error.message
        assert rig.parts.hosted.get(TP).is_offline  # type: ignore[union-attr]
        said = await refused(rig, "forget", "/d2", force=True)
        assert "holds the last in-sync replica" in said
        rig.controller.may_answer.set()
        await until(lambda: not rig.parts.lifecycle.unacknowledged_dirs)
        assert (await perform(rig, "reattach", "/d2")).state == "online"
        assert dict(zip(registrations(rig)[-1].log_dirs, clean_epochs(rig), strict=True)) == {
            ONE: 0,
            TWO: -1,
        }


async def test_forget_without_a_controller_ends_with_another_code_than_one_that_continues() -> None:
    async with registered(log_dir_registration_timeout_ms="50") as rig:
        rig.controller.may_answer.clear()
        error = await refusal(rig, "forget", "/d2")
        assert error.code is ErrorCode.NOT_CONTROLLER
        assert "no controller forgot it within log.dir.registration.timeout.ms=50" in error.message
        assert [d.path for d in rig.logs.dirs()] == ["/d1", "/d2"]


async def test_directory_that_fails_during_its_reattachment_is_reported_as_offline() -> None:
    """The registration may have arrived, although its response is lost."""

    def lossy(request: RpcRequest) -> RpcResponse:
        if isinstance(request, BrokerRegistrationRequest) and len(registrations(rig)) == 2:
            vfs.inject(Fault())
            raise OperatingError("lost", code=ErrorCode.REQUEST_TIMED_OUT)
        return in_order(request)

    vfs = FaultVfs(MemVfs())
    async with registered(FaultVfs(MemVfs()), vfs) as rig:
        await die(rig)
        rig.controller.answer = lossy
        with pytest.raises(OperatingError, match=r"Input/output error|died again"):
            await perform(rig, "reattach", "/d2")
        await until(lambda: registrations(rig)[-1].log_dirs == (ONE,))
        await until(lambda: not rig.parts.lifecycle.unacknowledged_dirs)


async def test_dir_opener_opens_added_directories_at_the_next_start() -> None:
    """The daemon uses the same ``DirOpener``."""
    disk, new = MemVfs(), MemVfs()
    new.make_dirs("/d3")
    async with registered(FaultVfs(disk), FaultVfs(MemVfs())) as rig:
        rig.disks_at["/d3"] = new
        uid = (await perform(rig, "add", "/d3")).directory_id
    disk.let_go("/d1")
    new.let_go("/d3")
    opener = DirOpener(
        log_dirs=[rig.make_log_dir("/d1")],
        metadata_dir="/d1",
        node_id=rig.broker_id,
        random_bytes=rig.around.random_bytes,
        make_log_dir=rig.make_log_dir,
    )
    with capture_logs():
        await opener.open()
    (opened,) = opener.added
    assert (opened.path, opened.directory_id) == ("/d3", uid)
    for log_dir in (opened, rig.dirs[0]):
        log_dir.close()


async def test_replicas_of_a_directory_missing_in_log_dirs_are_logged() -> None:
    async with brokers(1, MemVfs(), MemVfs(), opens=False) as (rig,):
        rig.replay(
            topic(),
            partition(0, directories=[directory_id(77)]),
            partition(1, directories=[directory_id(77)]),
            partition(2, directories=[ONE]),
            partition(3, directories=[UNASSIGNED_DIR]),
        )
        with capture_logs() as logs:
            rig.parts.admin.log_unknown()
    (found,) = [e for e in logs if e["event"] == "replicas_in_unknown_log_dir"]
    assert (found["directory_id"], found["replicas"]) == (str(directory_id(77)), 2)
