"""Groups that change their protocol with their members."""

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


def test_without_members_of_the_newer_protocol_it_is_classic_again() -> None:
    scene = upgraded()
    scene.beat("new", LEAVING)
    assert scene.became is not None and scene.became.group is not None
    group = scene.became.group
    # That of the epoch in which they are, so that they hear of a rebalance.
    assert (group.generation, group.leader, group.protocol_name) == (
        8,
        "old",
        "cooperative-sticky",
    )
    assert not scene.group.is_used, "nothing of the consumer group is left in the log"
    assert scene.log[-1] == GroupFact("g", group)


def test_a_classic_member_finds_an_empty_group_that_becomes_classic() -> None:
    scene = ConsumerScene()
    scene.join("a")
    scene.beat("a", LEAVING)
    assert scene.classic_join("", subscription("t")) is None
    assert scene.became is not None and scene.became.group is None
    assert len(scene.became.waiting) == 1 and not scene.group.is_used


def test_what_one_member_says_that_cannot_be_read_keeps_the_group_as_it_is() -> None:
    """Of each member only the first protocol is read when it joins."""
    scene = upgraded()
    odd = (("mine", subscription("t")), ("cooperative-sticky", b"\0"))
    assert scene.classic_join("odd", b"", protocols=odd).code is E.NONE
    assert scene.beat("new", LEAVING).code is E.NONE
    assert scene.became is None and list(scene.group.state.members) == ["old", "odd"]
    assert scene.classic_beat("old", 7) is E.REBALANCE_IN_PROGRESS, "it goes on as it was"
