"""A broker with an offline directory: the other directories continue unaffected.

These are old defects of Kafka, with the tickets that reported them.
"""

from __future__ import annotations

from errno import EIO, ESTALE

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.protocol.messages import FetchRequest
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs, no_cached_reads
from tests.unit.broker.broker_rig import (
    TOPIC,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until
from tests.unit.broker.scripted_controller import RealClock

OTHER = TP._replace(partition=1)


async def two_replicas(rig: BrokerRig) -> None:
    """Create partition 0 in the first directory and 1 in the second, with three records each."""
    await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
    for tp in (TP, OTHER):
        assert only(await rig.ask(produce(batch(3), tp=tp), 9)).error_code == 0


def fetch_both() -> object:
    kind = FetchRequest
    return kind(
        topics=[
            kind.FetchTopic(
                topic=TOPIC,
                partitions=[
                    kind.FetchPartition(partition=i, fetch_offset=0, partition_max_bytes=1 << 20)
                    for i in (0, 1)
                ],
            )
        ]
    )


async def test_broker_starts_without_the_replicas_of_a_bad_directory() -> None:
    """KAFKA-6697: one bad directory kept a broker from starting."""
    good = MemVfs()
    sick = FaultVfs(MemVfs())
    async with brokers(1, good, sick) as (rig,):
        await two_replicas(rig)
    sick.inject(Fault(kinds=frozenset({"list_dir"}), path="/d2"))
    with capture_logs() as logged:
        async with brokers(1, good, sick, opens=False) as (rig,):
            assert [log_dir.is_online for log_dir in rig.dirs] == [True, False]
            rig.replay(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
            rig.parts.publisher.open()
            await rig.parts.publisher.disk_work_done()
            dead = only(await rig.ask(fetch(0, tp=OTHER), 12))
            assert dead.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            alive = only(await rig.ask(fetch(0), 12))
            assert (alive.error_code, len(alive.records)) == (0, len(batch(3)))
            assert rig.logs.get(OTHER) is None
    (offline,) = [line for line in logged if line["event"] == "log_dir_offline"]
    assert offline["operation"] == "load"


async def test_high_watermark_checkpoint_continues_beside_an_offline_directory() -> None:
    """A failed directory must not prevent the checkpoints of the others."""
    sick = FaultVfs(MemVfs())
    good = MemVfs()
    async with brokers(1, sick, good) as (rig,):
        await two_replicas(rig)
        sick.inject(Fault(kinds=frozenset({"write_at"})))
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        for _ in range(2):
            # The first round detects the failure, and the second one has to skip the directory.
            await rig.parts.manager.checkpoint_high_watermarks()
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]
        text = good.read_if_exists("/d2/replication-offset-checkpoint")
        assert text is not None
        assert b"t 1 3" in text
        await until(lambda: rig.logs.get(TP) is None)
        await rig.parts.manager.checkpoint_high_watermarks()


async def test_fetch_of_an_offline_replica_fails_for_its_partition_only() -> None:
    """KAFKA-6027: the result is a storage error, instead of an exception that ends the request."""
    async with brokers() as (rig,):
        await two_replicas(rig)
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        rig.dirs[0].go_offline("test")
        await until(lambda: rig.logs.get(TP) is None)
        response = await rig.ask(fetch_both(), 12)
        (topic_part,) = response.responses
        codes = {part.partition_index: part.error_code for part in topic_part.partitions}
        assert codes == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: ErrorCode.NONE}
        assert len(topic_part.partitions[1].records) == len(batch(3))


@pytest.mark.parametrize("errno", [EIO, ESTALE])
@pytest.mark.parametrize("kind", ["read_cached_at", "read_at"])
async def test_fetch_read_error_takes_the_directory_offline(kind: str, errno: int) -> None:
    """KAFKA-16304: read errors of a failing disk looked like disconnected clients."""
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs()) as (rig,):
        await two_replicas(rig)
        if kind == "read_at":
            sick.inject(no_cached_reads())
        sick.inject(Fault(errno=errno, kinds=frozenset({kind}), path="*.log"))
        with capture_logs() as logged:
            response = await rig.ask(fetch_both(), 12)
        (topic_part,) = response.responses
        codes = {part.partition_index: part.error_code for part in topic_part.partitions}
        assert codes == {0: ErrorCode.KAFKA_STORAGE_ERROR, 1: ErrorCode.NONE}
        (offline,) = [line for line in logged if line["event"] == "log_dir_offline"]
        assert (offline["operation"], offline["replica"]) == ("read", str(TP))
        assert await rig.failures.take() is rig.dirs[0]


async def test_follower_fetching_continues_beside_a_failed_directory() -> None:
    """KAFKA-5864: the fetch loop must survive the failure of a replica's directory."""
    sick = FaultVfs(MemVfs())
    async with brokers(2, sick, MemVfs()) as rigs:
        in_both = [
            partition(i, replicas=(2, 1), leader=2, directories=[dir_of(2, 1), dir_of(1, i + 1)])
            for i in (0, 1)
        ]
        for rig in rigs:
            rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
            await rig.follow(topic(), *in_both)
        sick.inject(Fault(kinds=frozenset({"write_at"}), path="*.log"))
        await rigs[1].ask(produce(batch(), acks=1), 9)
        await until(lambda: not rigs[0].dirs[0].is_online)
        written = only(await rigs[1].ask(produce(batch(), tp=OTHER, timeout_ms=20_000), 9))
        assert written.error_code == 0
        replica = rigs[0].parts.hosted.get(TopicPartition(TOPIC, 0))
        assert replica is not None
        await until(lambda: replica.is_offline)
        assert rigs[0].broker_id == BrokerId(1)


async def test_isr_shrink_is_not_requested_by_a_leader_with_a_failed_directory() -> None:
    """KAFKA-7837: between the failure and the controller's reaction, the broker is no leader."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        assert replica.partition is not None
        assert only(await rig.ask(produce(batch(), acks=1), 9)).error_code == 0
        much_later_ms = RealClock().now_ms() + 1_000_000
        assert replica.partition.isr_shrink_candidates(much_later_ms) == (2,)
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        assert replica.partition.isr_shrink_candidates(much_later_ms) == ()
