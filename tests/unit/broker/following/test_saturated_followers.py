"""Followers in full directories, over real listeners on memory disks."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.core.ids import BrokerId
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.messages import DeleteRecordsRequest
from kraftjbod.storage.log.log_handle import LogHandle
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, produce, topic
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import fill, heal

DELETE = DeleteRecordsRequest
ONE_BATCH = TopicConfig(segment_bytes=1024, retention_ms=-1)


def log_of(rig: BrokerRig) -> LogHandle:
    handle = rig.logs.get(TP)
    assert handle is not None
    return handle


async def both_with_six(rigs: list[BrokerRig]) -> None:
    """Broker 2 leads; broker 1 has the same records, in segments of one batch with two records."""
    for rig in rigs:
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2))
        log_of(rig).set_config(ONE_BATCH)
    for _ in range(3):
        await rigs[1].ask(produce(batch(2, body=bytes(500))), 9)
    await until(lambda: log_of(rigs[0]).high_watermark == 6)


async def fill_first(rig: BrokerRig) -> None:
    """Fill the directory and perform the actions of the directory state handler."""
    await fill(rig.dirs[0])
    rig.parts.fetchers.stop_in(rig.dirs[0])
    rig.parts.manager.note_dir_state(rig.dirs[0])


async def delete(rig: BrokerRig, offset: int) -> None:
    """Delete records without waiting for the follower, which is not full according to metadata."""
    part = DELETE.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DELETE.DeleteRecordsTopic(name="t", partitions=[part])]
    await rig.ask(DELETE(topics=topics, timeout_ms=100), 2)
    assert log_of(rig).log_start_offset == offset


async def test_saturated_follower_deletes_records_that_its_leader_deleted() -> None:
    async with brokers(2) as rigs:
        follower, leader = rigs
        await both_with_six(rigs)
        await fill_first(follower)
        await delete(leader, 4)
        assert log_of(follower).log_start_offset == 0
        await follower.parts.saturated_followers.check()
        assert log_of(follower).log_start_offset == 4
        # The segments are removed, not only hidden.
        assert log_of(follower).first_segment_offset == 4
        assert log_of(follower).log_end_offset == 6


async def test_saturated_follower_behind_the_leaders_log_start_restarts_at_that_offset() -> None:
    async with brokers(2) as rigs:
        follower, leader = rigs
        await both_with_six(rigs)
        await fill_first(follower)
        await leader.follow(partition(replicas=(1, 2), isr=(2,), leader=2, epoch=1))
        follower.replay(partition(replicas=(1, 2), isr=(2,), leader=2, epoch=1))
        await leader.ask(produce(batch(2, body=bytes(500))), 9)
        await delete(leader, 8)
        await follower.parts.saturated_followers.check()
        log = log_of(follower)
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (8, 8, 0)
        # The follower continues at that offset.
        await heal(follower.dirs[0])
        follower.parts.manager.note_dir_state(follower.dirs[0])
        replica = follower.parts.hosted.require(TP)
        follower.parts.fetchers.follow([replica])
        await leader.ask(produce(batch(2, body=bytes(500))), 9)
        await until(lambda: log.log_end_offset == 10)


async def test_saturated_follower_deletes_no_uncommitted_records() -> None:
    async with brokers(2) as rigs:
        follower, leader = rigs
        await both_with_six(rigs)
        await fill_first(follower)
        log_of(follower).high_watermark = 3
        await delete(leader, 5)
        await follower.parts.saturated_followers.check()
        assert log_of(follower).log_start_offset == 3


async def test_saturated_followers_skip_directories_with_space() -> None:
    async with brokers(2) as rigs:
        follower, leader = rigs
        await both_with_six(rigs)
        follower.parts.fetchers.stop_in(follower.dirs[0])
        await delete(leader, 4)
        await follower.parts.saturated_followers.check()
        assert log_of(follower).log_start_offset == 0


async def test_saturated_follower_asks_for_leader_log_start_again_after_a_failed_request() -> None:
    async with brokers(2) as rigs:
        follower, leader = rigs
        await both_with_six(rigs)
        await fill_first(follower)
        await delete(leader, 2)
        state = follower.parts.cache.state
        known = state.brokers.pop(BrokerId(2))
        with capture_logs() as logged:
            await follower.parts.saturated_followers.check()
        assert [event["event"] for event in logged] == ["leader_log_starts_unknown"]
        assert log_of(follower).log_start_offset == 0
        state.brokers[BrokerId(2)] = known
        await follower.parts.saturated_followers.check()
        assert log_of(follower).log_start_offset == 2


async def test_saturated_follower_retries_a_failed_deletion() -> None:
    async with brokers(2) as rigs:
        follower, leader = rigs
        await both_with_six(rigs)
        await fill_first(follower)
        await delete(leader, 2)
        with capture_logs() as logged, log_of(follower).retention_paused():
            await follower.parts.saturated_followers.check()
        assert [event["event"] for event in logged] == ["leader_log_start_not_followed"]
        await follower.parts.saturated_followers.check()
        assert log_of(follower).log_start_offset == 2
