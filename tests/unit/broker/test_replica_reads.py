"""Reading one partition, without the wire."""

from __future__ import annotations

from kraftjbod.broker.fetch_sessions import FetchFrom
from kraftjbod.broker.hosted_replicas import HostedReplica
from kraftjbod.broker.replica_reads import ReplicaReads
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId
from tests.faults.rig import batch, headers_of
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, produce, topic
from tests.unit.broker.scripted_controller import RealClock

caught_up: list[BrokerId] = []


def reads_of(rig: BrokerRig) -> ReplicaReads:
    def note(_replica: HostedReplica, follower: BrokerId) -> None:
        caught_up.append(follower)

    caught_up.clear()
    return ReplicaReads(replicas=rig.parts.hosted, clock=RealClock(), follower_caught_up=note)


async def test_consumers_see_what_is_committed_and_followers_everything():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(), acks=1), 9)
        reads = reads_of(rig)
        consumer = reads.read(FetchFrom(TP, 0, 1000), min_one_batch=True, is_first_look=True)
        follower = reads.read(
            FetchFrom(TP, 0, 1000, replica_id=BrokerId(2)), min_one_batch=True, is_first_look=True
        )
        assert (len(consumer.records) > 0, len(follower.records) > 0) == (False, True)


async def test_a_request_without_room_is_told_that_something_is_left_out():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
        reads = reads_of(rig)
        wanted = FetchFrom(TP, 0, 0)
        assert reads.read(wanted, min_one_batch=False, is_first_look=True).is_left_out
        assert reads.read(wanted, min_one_batch=True, is_first_look=True).records


async def test_what_is_not_in_memory_comes_from_the_disk():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(2)), 9)
        data = await reads_of(rig).read_from_disk(FetchFrom(TP, 1, 1000), min_one_batch=True)
        assert [h.base_offset for h in headers_of(data.records)] == [0]
        gone = await reads_of(rig).read_from_disk(FetchFrom(TP, 9, 1000), min_one_batch=True)
        assert gone.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE)


async def test_a_follower_outside_of_the_isr_is_told_of_and_a_stranger_is_refused():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        reads = reads_of(rig)
        wanted = FetchFrom(TP, 0, 1000, replica_id=BrokerId(2))
        reads.read(wanted, min_one_batch=True, is_first_look=True)
        reads.read(wanted, min_one_batch=True, is_first_look=False)
        assert caught_up == [2]
        stranger = wanted._replace(replica_id=BrokerId(9))
        refused = reads.read(stranger, min_one_batch=True, is_first_look=True)
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
