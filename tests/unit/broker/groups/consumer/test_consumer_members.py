"""Static members of a consumer group, and validation of commits and fetches."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.broker.groups.consumer.consumer_group_events import (
    AWAY,
    Commit,
)
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.groups.consumer.consumer_scene import (
    INTERVAL_MS,
    SESSION_MS,
    ConsumerScene,
    two,
)

E = ErrorCode


def test_static_member_rejoins_with_its_assignment() -> None:
    scene = ConsumerScene()
    had = scene.join("a", instance_id="one").assignment
    assert scene.join("b", instance_id="one").code is E.UNRELEASED_INSTANCE_ID
    assert scene.beat("a", AWAY, instance_id="one").epoch == AWAY
    scene.wait(INTERVAL_MS)
    back = scene.join("b", instance_id="one")
    assert (back.epoch, back.assignment) == (2, had), "a static member rejoins without a rebalance"
    assert list(scene.group.state.members) == ["b"]
    assert scene.beat("a", 2, instance_id="one").code is E.FENCED_INSTANCE_ID
    assert scene.beat("c", 2, instance_id="two").code is E.UNKNOWN_MEMBER_ID
    assert scene.beat("b", AWAY, instance_id="one").code is E.NONE
    scene.wait(SESSION_MS)
    assert not scene.group.state.members, "the member did not rejoin"


def test_check_commit_validates_member_epoch_and_partitions() -> None:
    scene, epoch = two()
    own = frozenset(scene.group.state.current("a").assigned)
    others = frozenset(scene.group.state.current("b").assigned)
    say = Commit(member_id="a", epoch=epoch, partitions=own)
    for commit, code in (
        (say, E.NONE),
        (replace(say, member_id="z"), E.UNKNOWN_MEMBER_ID),
        (replace(say, epoch=epoch + 1), E.STALE_MEMBER_EPOCH),
        (replace(say, knows_epochs=False), E.UNSUPPORTED_VERSION),
        # The partitions were assigned before the current epoch (KIP-1251).
        (replace(say, epoch=epoch - 1), E.NONE),
        (replace(say, epoch=epoch - 1, partitions=others), E.STALE_MEMBER_EPOCH),
        # Java's producer treats any other code as fatal.
        (replace(say, epoch=epoch + 1, in_transaction=True), E.ILLEGAL_GENERATION),
        (Commit(member_id="", epoch=-1, partitions=own), E.UNKNOWN_MEMBER_ID),
        (Commit(member_id="", epoch=-1, partitions=own, in_transaction=True), E.NONE),
    ):
        assert scene.group.check_commit(commit) is code, commit
    assert scene.group.check_fetch(None, -1) is E.NONE
    assert scene.group.check_fetch("a", epoch) is E.NONE
    assert scene.group.check_fetch("a", epoch - 1) is E.STALE_MEMBER_EPOCH
    assert scene.group.check_fetch("z", 1) is E.UNKNOWN_MEMBER_ID
