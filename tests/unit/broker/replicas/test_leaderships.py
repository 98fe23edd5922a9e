"""``Leaderships``: subscribers receive each change once and in order."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from kraftjbod.broker.replicas.leaderships import Leadership, Leaderships
from kraftjbod.core.ids import TopicId
from kraftjbod.metadata.records import RemoveTopicRecord
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    partition,
    topic,
)
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import answer, stall


class Listening:
    """Records ``"+0@3"`` for an election in partition 0 and epoch 3, ``"-0@3"`` for its end."""

    def __init__(self, leaderships: Leaderships) -> None:
        self.received: list[str] = []
        leaderships.subscribe(self)

    def elected(self, leadership: Leadership) -> None:
        self.received.append(f"+{leadership.topic_partition.partition}@{leadership.leader_epoch}")

    def resigned(self, leadership: Leadership) -> None:
        self.received.append(f"-{leadership.topic_partition.partition}@{leadership.leader_epoch}")

    def taken(self) -> list[str]:
        received, self.received = self.received, []
        return received


def listening(rig: BrokerRig) -> Listening:
    rig.tasks.start(rig.parts.state_handler.run_handler(), "state-handler")
    return Listening(rig.parts.leaderships)


async def test_leadership_changes_of_metadata_notify_subscribers() -> None:
    async with brokers() as (rig,):
        received = listening(rig)
        both: dict[str, Any] = {"replicas": (1, 2)}
        await rig.follow(topic(), partition(**both), partition(1, **both, leader=2))
        assert received.taken() == ["+0@0"]
        await rig.follow(partition(**both, isr=[1]), partition(1, **both, leader=1, epoch=1))
        assert received.taken() == ["+1@1"], "an ISR change is no leadership change"
        await rig.follow(partition(**both, epoch=1), partition(1, **both, leader=2, epoch=2))
        assert received.taken() == ["+0@1", "-1@1"]
        await rig.follow(partition(replicas=(2,), leader=2, epoch=2))
        assert received.taken() == ["-0@1"], "the replica was removed"
        assert len(rig.parts.leaderships) == 0


async def test_leadership_of_a_recreated_topic_is_reported_as_new() -> None:
    other = TopicId(b"u" * 16)
    async with brokers() as (rig,):
        received = listening(rig)
        await rig.follow(topic(), partition(epoch=7))
        await rig.follow(
            RemoveTopicRecord(topic_id=TOPIC_ID),
            topic(topic_id=other),
            partition(topic_id=other, epoch=2),
        )
        assert received.taken() == ["+0@7", "-0@7", "+0@2"]


async def test_leadership_ends_when_the_directory_fails_but_not_when_it_stalls() -> None:
    async with brokers() as (rig,):
        received = listening(rig)
        at_second = [dir_of(1, 2)]
        await rig.follow(topic(), partition(), partition(1, directories=at_second), partition(2))
        received.taken()
        stall(rig.dirs[1])
        await answer(rig.dirs[1])
        assert received.taken() == []
        rig.dirs[1].go_offline("test")
        await until(lambda: received.received)
        assert received.taken() == ["-1@0"]
        # The replica does not lead although older metadata names it as leader.
        await rig.follow(partition(1, directories=at_second, epoch=1))
        assert received.taken() == []
        assert len(rig.parts.leaderships) == 2


async def test_leadership_is_reported_again_after_a_failed_copy_is_replaced() -> None:
    async with brokers() as (rig,):
        received = listening(rig)
        await rig.follow(topic(), partition())
        replica = rig.parts.hosted.get(TP)
        handle = replica.handle
        rig.parts.manager.promoted(replica, handle)
        assert received.taken() == ["+0@0"], "the same log in another directory"
        rig.parts.manager.mark_offline(handle.log_dir)
        rig.parts.manager.promoted(replica, handle)
        assert received.taken() == ["-0@0", "+0@0"]


async def test_failing_leadership_subscriber_does_not_affect_others() -> None:
    async with brokers() as (rig,):
        rig.parts.leaderships.subscribe(None)  # Has no such methods.
        received = listening(rig)
        with capture_logs() as lines:
            await rig.follow(topic(), partition())
        assert received.taken() == ["+0@0"]
        assert [line["event"] for line in lines] == ["leadership_subscriber_failed"]
