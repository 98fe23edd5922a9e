"""Responses of the leader to fetch requests of followers."""

from __future__ import annotations

import asyncio
from errno import EAGAIN
from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.protocol.messages import FetchRequest
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import Gate, settle

KIND = FetchRequest
VERSION = 16


def request(*offsets: int, session: tuple[int, int] = (0, 0), forget: Any = (), **more: Any) -> Any:
    """Fetch partition i from ``offsets[i]`` on as broker 2."""
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20}
    more.setdefault("current_leader_epoch", 0)
    limits |= {name: more.pop(name) for name in list(more) if name in limits}
    return KIND(
        replica_state=KIND.ReplicaState(replica_id=2, replica_epoch=BrokerEpoch(-1)),
        **limits,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            KIND.FetchTopic(
                topic_id=TOPIC_ID,
                partitions=[
                    KIND.FetchPartition(
                        partition=i, fetch_offset=offset, partition_max_bytes=1000, **more
                    )
                    for i, offset in enumerate(offsets)
                ],
            )
        ],
        forgotten_topics_data=[KIND.ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forget))],
    )


def answered(response: Any) -> dict[int, Any]:
    return {p.partition_index: p for t in response.responses for p in t.partitions}


async def lead_two(rig: BrokerRig) -> None:
    await rig.follow(topic(), *(partition(i, replicas=(1, 2)) for i in (0, 1)))


async def test_fetch_session_returns_only_partitions_with_changes() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        assert sorted(answered(first)) == [0, 1]
        assert (await rig.ask(produce(batch(), acks=1), 9)).responses
        again = await rig.ask(request(session=(first.session_id, 1)), VERSION)
        assert {i: len(p.records) > 0 for i, p in answered(again).items()} == {0: True}
        quiet = await rig.ask(request(session=(first.session_id, 2)), VERSION)
        assert answered(quiet) == {}


async def test_follower_fetch_advances_high_watermark_and_completes_produce() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        producing = asyncio.create_task(rig.ask(produce(batch(2)), 9))
        second = await rig.ask(request(session=(first.session_id, 1), max_wait_ms=60_000), VERSION)
        assert len(answered(second)[0].records)
        third = await rig.ask(request(2, session=(first.session_id, 2)), VERSION)
        assert answered(third)[0].high_watermark == 2
        assert (await producing).responses[0].partition_responses[0].error_code == 0


def high_watermark(rig: BrokerRig) -> int:
    partition = rig.parts.hosted.require(TP).partition
    assert partition is not None
    return partition.high_watermark


@pytest.mark.parametrize(("replica_id", "epoch"), [(2, 77), (2, 0), (3, -1), (99, -1), (1, -1)])
async def test_follower_fetch_with_wrong_replica_or_epoch_returns_no_records(
    replica_id: int, epoch: int
) -> None:
    """A fetching replica must be registered in the epoch that the request names."""
    async with brokers() as (rig,):
        await lead_two(rig)
        await rig.ask(produce(batch(), acks=1), 9)
        await rig.ask(request(0, 0), VERSION)
        strange = request(1, 0)
        strange.replica_state = KIND.ReplicaState(replica_id=replica_id, replica_epoch=epoch)
        first = await rig.ask(strange, VERSION)
        assert {p.error_code for p in answered(first).values()} == {
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
        await rig.ask(produce(batch(), acks=1), 9)
        # The same holds in its own session and in the session of another follower.
        strange.session_id, strange.session_epoch, strange.topics = first.session_id, 1, []
        second = await rig.ask(strange, VERSION)
        assert not any(part.records for part in answered(second).values())
        assert high_watermark(rig) == 0


async def test_fetch_that_opens_a_session_advances_high_watermark_only_at_the_next_fetch() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        await rig.ask(produce(batch(), acks=1), 9)
        old = await rig.ask(request(0, 0), VERSION)
        new = await rig.ask(request(1, 0, max_wait_ms=60_000), VERSION)
        assert high_watermark(rig) == 0
        session = (new.session_id, 1)
        await rig.ask(request(session=session), VERSION)
        assert high_watermark(rig) == 1
        # Fetches of the abandoned session have no effect.
        await rig.ask(produce(batch(), acks=1), 9)
        await rig.ask(request(2, 0, session=(old.session_id, 1)), VERSION)
        assert high_watermark(rig) == 1


async def test_fetch_session_of_another_follower_returns_session_id_not_found() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        other = request(session=(first.session_id, 1))
        other.replica_state = KIND.ReplicaState(replica_id=3, replica_epoch=-1)
        assert (await rig.ask(other, VERSION)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_fetch_session_omits_forgotten_partitions() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        await rig.ask(produce(batch(), acks=1), 9)
        second = await rig.ask(request(session=(first.session_id, 1), forget=[0]), VERSION)
        assert answered(second) == {}


async def test_follower_fetch_with_diverging_log_returns_diverging_epoch() -> None:
    """KIP-595: the last epoch of the follower ended earlier on the leader."""
    async with brokers() as (rig,):
        await lead_two(rig)
        await rig.ask(produce(batch(2), acks=1), 9)
        rig.replay(partition(0, replicas=(1, 2), epoch=4))
        response = await rig.ask(request(5, current_leader_epoch=4, last_fetched_epoch=3), VERSION)
        diverging = answered(response)[0].diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 2)


async def test_follower_fetch_returns_errors_without_waiting() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        stale = await rig.ask(request(0, current_leader_epoch=9, max_wait_ms=60_000), VERSION)
        assert answered(stale)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        other = request(0, max_wait_ms=60_000)
        other.topics[0].topic_id = b"?" * 16
        assert answered(await rig.ask(other, VERSION))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_fetch_with_unknown_session_returns_session_id_not_found() -> None:
    async with brokers() as (rig,):
        response = await rig.ask(request(session=(77, 3)), VERSION)
        assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_waiting_follower_fetch_ends_when_leadership_is_lost() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        waiting = asyncio.create_task(
            rig.ask(request(session=(first.session_id, 1), max_wait_ms=60_000), VERSION)
        )
        await settle()
        rig.replay(partition(0, replicas=(1, 2), leader=2, epoch=1))
        assert answered(await waiting)[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


async def test_waiting_follower_fetch_ends_when_its_directory_fails() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        waiting = asyncio.create_task(
            rig.ask(request(session=(first.session_id, 1), max_wait_ms=60_000), VERSION)
        )
        await settle()
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        codes = {index: part.error_code for index, part in answered(await waiting).items()}
        assert codes == {i: ErrorCode.KAFKA_STORAGE_ERROR for i in (0, 1)}


async def test_follower_fetch_omits_a_hanging_directory_until_it_answers() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs(), log_dir_io_suspect_ms="50") as (rig,):
        directories = [[dir_of(1, n), dir_of(2, 1)] for n in (1, 2)]
        await rig.follow(
            topic(),
            *(partition(i, replicas=(1, 2), directories=directories[i]) for i in (0, 1)),
        )
        for index in (0, 1):
            await rig.ask(produce(batch(), acks=1, tp=TP._replace(partition=index)), 9)
        sick.inject(Fault(errno=EAGAIN, kinds=frozenset({"read_cached_at"})))
        with Gate(sick, "read_at", "*.log"):
            first = await rig.ask(request(0, 0), VERSION)
            assert {i: len(p.records) > 0 for i, p in answered(first).items()} == {
                0: False,
                1: True,
            }
        second = await rig.ask(request(session=(first.session_id, 1)), VERSION)
        assert len(answered(second)[0].records)


async def test_follower_fetch_does_not_wait_again_for_a_suspected_directory() -> None:
    """Records of other directories in the same fetch must not wait twice for one suspicion."""
    sick = FaultVfs(MemVfs())
    limits = {"log_dir_io_suspect_ms": "600000", "log_dir_io_timeout_ms": "1200000"}
    async with brokers(1, sick, MemVfs(), **limits) as (rig,):
        directories = [[dir_of(1, n), dir_of(2, 1)] for n in (1, 2)]
        await rig.follow(
            topic(),
            *(partition(i, replicas=(1, 2), directories=directories[i]) for i in (0, 1)),
        )
        for index in (0, 1):
            await rig.ask(produce(batch(), acks=1, tp=TP._replace(partition=index)), 9)
        sick.inject(Fault(errno=EAGAIN, kinds=frozenset({"read_cached_at"})))
        with Gate(sick, "read_at", "*.log") as gate:
            first = asyncio.create_task(rig.ask(request(0, 0), VERSION))
            await gate.reached()
            rig.disk_clock.ms += 600_001
            second = await rig.ask(request(0, 0), VERSION)
            assert not first.done()
            assert {i: len(p.records) > 0 for i, p in answered(second).items()} == {
                0: False,
                1: True,
            }
        assert all(len(p.records) for p in answered(await first).values())


async def test_waiting_follower_fetch_ends_on_append_before_commit() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        waiting = asyncio.create_task(
            rig.ask(request(session=(first.session_id, 1), max_wait_ms=60_000), VERSION)
        )
        await settle()
        await rig.ask(produce(batch(), acks=1), 9)
        (part,) = answered(await waiting).values()
        assert (part.high_watermark, len(part.records) > 0) == (0, True)


async def test_new_fetch_session_replaces_the_old_session() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        first = await rig.ask(request(0, 0), VERSION)
        renewed = await rig.ask(request(0, session=(first.session_id, 0)), VERSION)
        assert renewed.session_id != first.session_id
        lost = await rig.ask(request(session=(first.session_id, 1)), VERSION)
        assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def sizes(response: Any) -> dict[int, int]:
    return {index: len(part.records) for index, part in answered(response).items()}


async def write(rig: BrokerRig, index: int, size: int) -> int:
    """Append one batch with a body of ``size`` bytes and return its size in the log."""
    records = batch(body=bytes(size))
    await rig.ask(produce(records, acks=1, tp=TP._replace(partition=index)), 9)
    return len(records)


async def test_waiting_follower_fetch_stays_within_max_bytes_after_new_appends() -> None:
    """The second read of the session counts the bytes of the first read."""
    async with brokers() as (rig,):
        await lead_two(rig)
        small = await write(rig, 0, 100)
        first = await rig.ask(request(0, 0), VERSION)
        assert sizes(first) == {0: small, 1: 0}
        limit = 2 * small
        waiting = asyncio.create_task(
            rig.ask(
                request(
                    0,
                    session=(first.session_id, 1),
                    max_wait_ms=60_000,
                    min_bytes=limit,
                    max_bytes=limit,
                ),
                VERSION,
            )
        )
        await settle()
        await write(rig, 1, 150)
        answer = await waiting
        assert sizes(answer) == {0: small, 1: 0} or sizes(answer) == {0: small}
        later = await rig.ask(request(session=(first.session_id, 2)), VERSION)
        assert sizes(later)[1] > 0


async def test_follower_fetch_returns_batch_above_remaining_max_bytes_in_the_next_response() -> (
    None
):
    async with brokers() as (rig,):
        await lead_two(rig)
        for index in (0, 1):
            size = await write(rig, index, 300)
        first = await rig.ask(request(0, 0, max_bytes=size + size // 2), VERSION)
        assert sizes(first) == {0: size, 1: 0}
        second = await rig.ask(request(session=(first.session_id, 1)), VERSION)
        assert sizes(second) == {1: size}


async def test_follower_fetch_reads_from_disk_stay_within_max_bytes() -> None:
    cold = FaultVfs(MemVfs())
    async with brokers(1, cold, MemVfs()) as (rig,):
        await lead_two(rig)
        for index in (0, 1):
            size = await write(rig, index, 300)
        cold.inject(Fault(errno=EAGAIN, kinds=frozenset({"read_cached_at"})))
        first = await rig.ask(request(0, 0, max_bytes=size + size // 2), VERSION)
        assert sizes(first) == {0: size, 1: 0}
        second = await rig.ask(request(session=(first.session_id, 1)), VERSION)
        assert sizes(second) == {1: size}


# --- KIP-73 --------------------------------------------------------------------------------------

RATE = "leader.replication.throttled.rate"
LISTED = "leader.replication.throttled.replicas"


def setting(kind: ResourceType, name: str, key: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


async def lead_two_throttled(rig: BrokerRig, *, isr: tuple[int, ...]) -> None:
    """Lead partition 0, throttled to one byte per second, and partition 1, which is not."""
    await rig.follow(
        topic(),
        setting(ResourceType.TOPIC, "t", LISTED, "0:1"),
        setting(ResourceType.BROKER, "1", RATE, "1"),
        *(partition(i, replicas=(1, 2), isr=isr) for i in (0, 1)),
    )


async def test_leader_throttle_above_quota_omits_only_listed_partitions() -> None:
    async with brokers() as (rig,):
        await lead_two_throttled(rig, isr=(1,))
        size = await write(rig, 0, 100)
        first = await rig.ask(request(0, 0), VERSION)
        assert sizes(first) == {0: size, 1: 0}  # The first bytes overdraw the quota.
        for index in (0, 1):
            await write(rig, index, 100)
        held = await rig.ask(request(1, session=(first.session_id, 1)), VERSION)
        assert {i: n for i, n in sizes(held).items() if n} == {1: size}


async def test_leader_throttle_removed_sends_withheld_records() -> None:
    async with brokers() as (rig,):
        await lead_two_throttled(rig, isr=(1,))
        size = await write(rig, 0, 100)
        first = await rig.ask(request(0, 0), VERSION)
        await write(rig, 0, 100)
        held = await rig.ask(request(1, session=(first.session_id, 1)), VERSION)
        assert not any(sizes(held).values())
        await rig.follow(setting(ResourceType.BROKER, "1", RATE, str(2**63 - 1)))
        freed = await rig.ask(request(session=(first.session_id, 2), max_wait_ms=60_000), VERSION)
        assert sizes(freed) == {0: size}


async def test_leader_throttle_withholds_no_records_from_in_sync_followers() -> None:
    async with brokers() as (rig,):
        await lead_two_throttled(rig, isr=(1, 2))
        size = await write(rig, 0, 100)
        first = await rig.ask(request(0, 0), VERSION)
        await write(rig, 0, 100)
        second = await rig.ask(request(1, session=(first.session_id, 1)), VERSION)
        assert sizes(second) == {0: size}
        assert rig.parts.quotas.leader.wait_ms(rig.around.clock.now_ms()) > 0  # Its bytes count.


async def test_follower_fetch_after_append_with_gaps_sets_may_have_gaps() -> None:
    async with brokers() as (rig,):
        await lead_two(rig)
        handle = rig.logs.get(TP)
        assert handle is not None
        assert not answered(await rig.ask(request(0), VERSION))[0].may_have_gaps
        await handle.append_as_follower(batch(base_offset=9), may_have_gaps=True)
        await rig.ask(produce(batch(), acks=1), 9)
        answer = answered(await rig.ask(request(0), VERSION))[0]
        assert answer.may_have_gaps
        assert len(answer.records) > 0
