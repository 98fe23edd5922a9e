"""FetchMetadata requests of brokers, to the active controller and to followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.controller.decision_rules import NO_RECORDS
from kraftjbod.core.errors import ErrorCode, NotControllerError, OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest, FetchMetadataResponse
from kraftjbod.raft.log.log_store import SnapshotPiece
from kraftjbod.raft.machine.messages import Append, Entry, HardState
from kraftjbod.raft.machine.voter_set import ReplicaKey
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation import SimulatedCluster
from tests.faults.vfs_fault import FaultVfs
from tests.unit.controller.conftest import ONE, TWO, Node
from tests.unit.raft.quorum_rig import Net, until


async def test_fetch_metadata_beyond_log_end_is_out_of_range(node: Node) -> None:
    request = FetchMetadataRequest(broker_id=ONE, fetch_offset=99, max_wait_ms=0, max_bytes=1000)
    with pytest.raises(OperatingError) as refused:
        await node.controller.handle(request)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("position", [0, 1 << 40])
async def test_fetch_metadata_of_missing_snapshot_is_out_of_range(
    node: Node, position: int
) -> None:
    """It once failed an assertion and closed the connection."""
    request = FetchMetadataRequest(
        broker_id=ONE,
        fetch_offset=0,
        max_wait_ms=0,
        max_bytes=1000,
        snapshot_offset=7,
        snapshot_position=position,
    )
    with pytest.raises(OperatingError) as refused:
        await node.controller.handle(request)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    node.controller.on_snapshot_due()
    while await node.driver.committed.newest_snapshot() is None:
        await asyncio.sleep(0)
    newest = node.managers.state.offset
    request = request.model_copy(update={"snapshot_offset": newest})
    if position:
        with pytest.raises(OperatingError) as refused:
            await node.controller.handle(request)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        answer = await node.controller.handle(request)
        assert isinstance(answer, FetchMetadataResponse)
        assert answer.snapshot_offset == newest


async def test_fetch_metadata_response_has_term_of_the_snapshot_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot of the new leader may hold the same state in another order."""
    driver = node.driver
    node.controller.on_snapshot_due()
    while (newest := await driver.committed.newest_snapshot()) is None:
        await asyncio.sleep(0)
    term, read = driver.term, driver.committed.read_snapshot

    async def read_slowly(*which: int) -> SnapshotPiece | None:
        found = await read(*which)
        driver.core._hard_state = HardState(term=term + 1)
        return found

    monkeypatch.setattr(driver.committed, "read_snapshot", read_slowly)
    answer = await node.controller.handle(
        FetchMetadataRequest(
            broker_id=ONE,
            fetch_offset=0,
            max_wait_ms=0,
            max_bytes=1000,
            snapshot_offset=newest.last_offset,
        )
    )
    assert isinstance(answer, FetchMetadataResponse)
    assert (driver.term, answer.controller_epoch) == (term + 1, term)


async def test_fetch_metadata_of_damaged_snapshot_is_refused_and_snapshot_recreated(
    node: Node,
) -> None:
    """Before, a flipped bit on the controller's disk became the state of a broker."""
    driver = node.driver
    node.controller.on_snapshot_due()
    while (newest := await driver.committed.newest_snapshot()) is None:
        await asyncio.sleep(0)
    file = node.log_dir.vfs.open(f"/d1/log/{newest.file_name}", OpenMode.READ_WRITE)
    whole = bytes(file.read_at(0, file.size()))
    file.write_at(len(whole) - 1, [bytes([whole[-1] ^ 1])])
    file.close()
    request = FetchMetadataRequest(
        broker_id=ONE,
        fetch_offset=0,
        max_wait_ms=0,
        max_bytes=10_000_000,
        snapshot_offset=newest.last_offset,
    )
    with capture_logs() as events, pytest.raises(OperatingError) as refused:
        await node.controller.handle(request)
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE
    assert "metadata_snapshot_damaged" in {event["event"] for event in events}
    while driver.is_snapshotting:
        await asyncio.sleep(0)
    answer = await node.controller.handle(request)
    assert isinstance(answer, FetchMetadataResponse)
    assert answer.snapshot_chunk == whole[-newest.size_bytes :][: len(answer.snapshot_chunk)]
    assert answer.snapshot_crc == newest.crc


def test_broker_cut_off_from_active_controller_fetches_metadata_from_followers() -> None:
    """Followers know the topic as soon as it is committed."""
    with SimulatedCluster(seed=3, controllers=3, brokers=2, log_dirs=1) as cluster:
        cluster.start()
        active = next(one for one in cluster.controllers if one.is_active)
        cut_off = cluster.broker(2)
        cluster.network.partition(cut_off.name, active.name)
        client = cluster.client("client")
        client.run(create_topic(client.kafka, "news", assignment={0: [1]}))
        wiring = cut_off.wiring
        assert wiring is not None
        cluster.wait_for(
            lambda: "news" in wiring.cluster.cache.state.topic_ids, "the broker knows it"
        )
        assert active.state is not None
        assert not active.state.brokers[TWO].fenced, "its session had not ended by then"


class Follower:
    """A controller that receives scripted Appends as if from a leader, and sends nothing."""

    def __init__(self, vfs: FaultVfs) -> None:
        net = Net()
        net.cut.add(1)
        self.node = Node(vfs, quorum=net)

    def hear(self, previous: int, *terms: int, committed: int, of_term: int = 1) -> None:
        """Receive entries of ``terms`` after offset ``previous``."""
        core = self.node.driver.core
        entries = (Entry(previous + i, term, NO_RECORDS) for i, term in enumerate(terms, 1))
        append = Append(
            sender=core.log.voters.known_as(ReplicaKey(TWO)),
            to=core.key,
            term=of_term,
            previous_offset=previous,
            previous_term=0 if previous < 0 else 1,
            entries=tuple(entries),
            committed_offset=committed,
        )
        self.node.driver.receive(append)

    async def ask(self, **how: object) -> FetchMetadataResponse:
        request = FetchMetadataRequest(
            broker_id=ONE,
            fetch_offset=0,
            max_wait_ms=60_000,
            max_bytes=1000,
            applied_metadata_offset=-1,
        )
        answer = await self.node.controller.handle(request.model_copy(update=how))
        assert isinstance(answer, FetchMetadataResponse)
        return answer

    async def is_refused(self, **how: object) -> bool:
        try:
            await self.ask(**how)
        except NotControllerError:
            return True
        return False


@pytest.fixture
async def follower(vfs: FaultVfs) -> AsyncIterator[Follower]:
    made = Follower(vfs)
    await made.node.controller.start()
    yield made
    await made.node.controller.stop()
    made.node.log_dir.close()


async def test_follower_answers_fetch_metadata_with_committed_entries_only(
    follower: Follower,
) -> None:
    assert await follower.is_refused(), "it hears no leader"
    follower.hear(-1, committed=-1)
    assert await follower.is_refused(), "and knows nothing"
    follower.hear(-1, 1, 1, committed=0)
    await until(lambda: follower.node.driver.committed_offset == 0)
    answer = await follower.ask()
    assert not answer.is_active
    assert [entry.offset for entry in answer.entries] == [0], "of two, one is committed"
    assert (answer.controller_id, answer.high_watermark) == (1, 0)
    assert await follower.is_refused(applied_metadata_offset=None), "only the active one would do"
    assert await follower.is_refused(applied_metadata_offset=1), "the broker has a later offset"
    assert await follower.is_refused(metadata_log_id=Uuid(b"o" * 16)), "of another log"
    assert await follower.is_refused(fetch_offset=2)
    waiting = asyncio.create_task(follower.ask(fetch_offset=1))
    follower.hear(1, committed=1)
    assert [entry.offset for entry in (await waiting).entries] == [1]
    follower.hear(0, 7, committed=1, of_term=7)
    assert await follower.is_refused(), "the leader lacks an entry that is committed here"


async def test_follower_limits_the_wait_of_fetch_metadata(follower: Follower) -> None:
    follower.hear(-1, 1, committed=0)
    await until(lambda: follower.node.driver.committed_offset == 0)
    waiting = asyncio.create_task(follower.ask(fetch_offset=1))
    await asyncio.sleep(0)
    follower.node.clock.ms += 1_500
    follower.hear(0, committed=0)
    follower.node.driver._waits.wake_all()  # Waiting fetches look at the clock again.
    assert (await waiting).entries == ()
