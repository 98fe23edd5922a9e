"""Conversion of groups between the classic and the consumer protocol."""

from __future__ import annotations

from kraftjbod.broker.groups.consumer.consumer_group_events import (
    LEAVING,
)
from kraftjbod.broker.groups.records.group_records import GroupFact
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.groups.consumer.classic_scene import subscription, upgraded
from tests.unit.broker.groups.consumer.consumer_scene import (
    ConsumerScene,
)

E = ErrorCode


def test_group_without_consumer_members_becomes_classic() -> None:
    scene = upgraded()
    scene.beat("new", LEAVING)
    assert scene.became is not None and scene.became.group is not None
    group = scene.became.group
    # The generation is the current epoch, so that the members notice a rebalance.
    assert (group.generation, group.leader, group.protocol_name) == (
        8,
        "old",
        "cooperative-sticky",
    )
    assert not scene.group.is_used, "the log has no facts of the consumer group"
    assert scene.log[-1] == GroupFact("g", group)


def test_empty_consumer_group_becomes_classic_when_a_classic_member_joins() -> None:
    scene = ConsumerScene()
    scene.join("a")
    scene.beat("a", LEAVING)
    assert scene.classic_join("", subscription("t")) is None
    assert scene.became is not None and scene.became.group is None
    assert len(scene.became.waiting) == 1 and not scene.group.is_used


def test_group_with_an_unreadable_subscription_does_not_become_classic() -> None:
    """The join of a member reads its first protocol only."""
    scene = upgraded()
    odd = (("mine", subscription("t")), ("cooperative-sticky", b"\0"))
    assert scene.classic_join("odd", b"", protocols=odd).code is E.NONE
    assert scene.beat("new", LEAVING).code is E.NONE
    assert scene.became is None and list(scene.group.state.members) == ["old", "odd"]
    assert scene.classic_beat("old", 7) is E.REBALANCE_IN_PROGRESS, "the group is unchanged"
