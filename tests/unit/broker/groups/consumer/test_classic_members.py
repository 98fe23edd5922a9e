"""Members of the classic protocol in a consumer group."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.broker.groups.consumer.consumer_group_events import (
    LEAVING,
    MigrationPolicy,
)
from kraftjbod.broker.groups.consumer.consumer_protocol import read_assignment
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.groups.consumer.classic_scene import subscription, upgraded
from tests.unit.broker.groups.consumer.consumer_scene import (
    INTERVAL_MS,
    REBALANCE_MS,
)

E = ErrorCode


def test_classic_member_rejoins_and_syncs_in_a_consumer_group() -> None:
    scene = upgraded()
    assert scene.classic_beat("old", 7) is E.REBALANCE_IN_PROGRESS
    all_of_it = (("t", [0, 1, 2, 3]),)
    joined = scene.classic_join("old", subscription("t", owned=all_of_it))
    assert (joined.code, joined.generation, joined.leader) == (E.NONE, 7, "")
    synced = scene.classic_sync("old", 7)
    kept = read_assignment(synced.assignment)
    assert len(kept) == 2, "the member must revoke two partitions"
    assert scene.classic_beat("old", 7) is E.REBALANCE_IN_PROGRESS
    owned = (("t", [one.partition for one in kept]),)
    joined = scene.classic_join("old", subscription("t", owned=owned))
    assert (joined.code, joined.generation) == (E.NONE, 8)
    assert read_assignment(scene.classic_sync("old", 8).assignment) == kept
    assert scene.classic_beat("old", 8) is E.NONE
    reply = scene.beat("new", 8)
    assert reply.assignment is not None and len(reply.assignment) == 2


def test_classic_members_stay_in_a_consumer_group_without_downgrade_policy() -> None:
    scene = upgraded()
    scene.group.configure(replace(scene.settings, migration_policy=MigrationPolicy.UPGRADE))
    scene.beat("new", LEAVING)
    assert scene.became is None
    scene.wait(INTERVAL_MS)
    assert scene.classic_beat("old", 7) is E.REBALANCE_IN_PROGRESS
    joined = scene.classic_join("old", subscription("t"))
    assert len(read_assignment(scene.classic_sync("old", joined.generation).assignment)) == 4


def test_classic_member_that_does_not_rejoin_in_time_is_removed() -> None:
    scene = upgraded()
    for _ in range(REBALANCE_MS // 5_000):
        scene.classic_beat("old", 7)
        scene.beat("new", scene.group.state.current("new").epoch)
        scene.wait(5_000)
    assert list(scene.group.state.members) == ["new"]


def test_classic_member_requests_with_invalid_ids_or_protocols_are_rejected() -> None:
    scene = upgraded()
    bad = scene.classic_join("old", b"\0")
    assert bad.code is E.INCONSISTENT_GROUP_PROTOCOL
    other = scene.classic_join("x", subscription("t"), protocols=(("mine", subscription("t")),))
    assert other.code is E.INCONSISTENT_GROUP_PROTOCOL
    reply = scene.classic_join("", subscription("t"))
    assert reply.code is E.MEMBER_ID_REQUIRED and reply.member_id.startswith("fresh")
    assert scene.classic_join(reply.member_id, subscription("t")).code is E.NONE
    assert scene.classic_beat("new", 8) is E.UNKNOWN_MEMBER_ID
    assert scene.classic_beat("old", 6) is E.ILLEGAL_GENERATION
    assert scene.classic_leave(("old", None), ("z", None)) == (E.NONE, E.UNKNOWN_MEMBER_ID)
