"""``GroupPartition``: groups, offsets, expiration and deletion."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.groups.classic.classic_group import GroupLimits
from kraftjbod.broker.groups.classic.group_events import GroupState, JoinRequested
from kraftjbod.broker.groups.coordinator.group_partition import (
    RECOUNT_INTERVAL_MS,
    GroupPartition,
    subscribed_topics,
)
from kraftjbod.broker.groups.records.group_records import (
    CommittedOffset,
    GroupFact,
    GroupMember,
    GroupMetadata,
    OffsetFact,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from tests.unit.broker.groups.consumer.consumer_scene import CONSUMER

READ, UNREAD = TopicPartition("read", 0), TopicPartition("unread", 0)
SUBSCRIPTION = b"\0\1\0\0\0\1\0\4read\xff\xff\xff\xff"
RETENTION_MS = 1_000


def member(subscription: bytes = SUBSCRIPTION) -> GroupMember:
    return GroupMember(
        member_id="m",
        instance_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        subscription=subscription,
        assignment=b"",
    )


def kept(*members: GroupMember, since_ms: int = 0, **more: Any) -> GroupMetadata:
    said = {"protocol_type": "consumer", "protocol_name": "range", "leader": "m", **more}
    return GroupMetadata(generation=3, since_ms=since_ms, members=members, **said)


def loaded(group: GroupMetadata | None, **offset: int) -> GroupPartition:
    """Group ``g`` with the same offset for both topics."""
    groups = GroupPartition(GroupLimits(initial_rebalance_delay_ms=0, max_size=9), CONSUMER)
    committed = CommittedOffset(offset=5, **offset)
    for topic_partition in (READ, UNREAD):
        groups.take(OffsetFact("g", topic_partition, committed))
    groups.take(GroupFact("g", group))
    groups.loaded(0)
    return groups


@pytest.mark.parametrize(
    ("group", "offset", "at_ms", "gone"),
    [
        pytest.param(None, {"commit_ms": 1}, 1_000, [], id="simple, fresh"),
        pytest.param(None, {"commit_ms": 1}, 1_001, [READ, UNREAD], id="simple, old"),
        pytest.param(kept(since_ms=500), {"commit_ms": 1}, 1_499, [], id="empty not for long"),
        pytest.param(
            kept(since_ms=500), {"commit_ms": 1}, 1_500, [READ, UNREAD, "g"], id="empty for long"
        ),
        pytest.param(kept(member()), {"commit_ms": 1}, 9_999, [UNREAD], id="reads one"),
        pytest.param(kept(member(b"?")), {"commit_ms": 1}, 9_999, [], id="unreadable subscription"),
        pytest.param(
            kept(member(), protocol_type="connect"), {"commit_ms": 1}, 9_999, [], id="no consumers"
        ),
        pytest.param(
            kept(),
            {"commit_ms": 1, "expire_ms": 50},
            50,
            [READ, UNREAD, "g"],
            id="own expiration time",
        ),
    ],
)
def test_group_partition_expired_returns_offsets_and_groups_after_the_retention(
    group: GroupMetadata | None, offset: dict[str, int], at_ms: int, gone: list[Any]
) -> None:
    groups = loaded(group, **offset)
    facts = groups.expired("g", at_ms, RETENTION_MS)
    named = [f.topic_partition if isinstance(f, OffsetFact) else f.group_id for f in facts]
    assert named == gone
    for fact in facts:
        groups.take(fact)
    if "g" in gone:
        assert groups.state_of("g") is GroupState.DEAD and len(groups) == 0


def test_offsets_are_kept_while_a_commit_is_in_flight() -> None:
    """The tombstone would follow the new commit, or delete the offset of another topic."""
    groups = loaded(None, commit_ms=0)
    with groups.committing("g"), groups.committing("g"):
        pass
    assert len(groups.orphaned("g", lambda *_: True)) == 2
    with groups.committing("g"):
        with groups.committing("g"):
            pass
        assert groups.orphaned("g", lambda *_: True) == []
        assert groups.expired("g", 10 * RETENTION_MS, RETENTION_MS) == []


def test_orphaned_keeps_a_pending_offset_of_a_recreated_topic() -> None:
    """The pending offset has a topic name only; the earlier commit was for the deleted topic."""
    groups = GroupPartition(GroupLimits(initial_rebalance_delay_ms=0, max_size=9), CONSUMER)
    old = CommittedOffset(offset=5, topic_id=b"o" * 16)
    groups.take(OffsetFact("g", READ, old))
    groups.take(OffsetFact("g", UNREAD, old))
    groups.take(OffsetFact("g", READ, CommittedOffset(offset=6)), 3, producer_id=1)

    def is_gone(_name: str, topic_id: bytes) -> bool:
        return topic_id == b"o" * 16

    assert groups.orphaned("g", is_gone) == [OffsetFact("g", UNREAD, None)]


def test_delete_group_requires_an_empty_group_and_removes_all_facts() -> None:
    assert loaded(kept(member())).check_deletion("g") is ErrorCode.NON_EMPTY_GROUP
    assert loaded(None).check_deletion("x") is ErrorCode.GROUP_ID_NOT_FOUND
    groups = loaded(kept())
    assert groups.check_deletion("g") is ErrorCode.NONE
    for fact in groups.deletion("g"):
        groups.take(fact)
    assert groups.group_ids() == []


def test_admits_counts_the_groups_of_a_full_partition_once_per_second() -> None:
    """Counting 100,000 groups takes 40 ms of the event loop, and any client may ask for more."""
    groups = GroupPartition(GroupLimits(initial_rebalance_delay_ms=0, max_size=9), CONSUMER)
    committed = CommittedOffset(offset=5)
    for group_id in ("a", "b"):
        groups.take(OffsetFact(group_id, READ, committed))
    groups.loaded(0)
    assert groups.admits("c", 3, 0), "two of three exist"
    assert groups.admits("d", 3, 0), "c was not created"
    groups.take(OffsetFact("d", READ, committed))
    assert groups.admits("a", 3, 5) and groups.admits("d", 3, 5), "they exist"
    assert not groups.admits("c", 3, 5)
    groups.take(OffsetFact("b", READ, None))
    assert not groups.admits("c", 3, RECOUNT_INTERVAL_MS - 1), "not counted again"
    assert groups.admits("c", 3, RECOUNT_INTERVAL_MS)


def test_forget_unused_removes_an_unwritten_group_after_its_last_pending_id() -> None:
    groups = GroupPartition(GroupLimits(initial_rebalance_delay_ms=0, max_size=9), CONSUMER)
    group = groups.group("g")
    request = JoinRequested(
        token=1,
        member_id="",
        fresh_member_id="m",
        session_timeout_ms=10,
        rebalance_timeout_ms=10,
        protocol_type="consumer",
        protocols=(("range", b""),),
    )
    group.handle(request, 0)
    assert not groups.forget_unused(group)
    group.pending.clear()
    assert groups.forget_unused(group) and len(groups) == 0


@pytest.mark.parametrize(
    ("subscription", "topics"),
    [
        (SUBSCRIPTION, {"read"}),
        (b"\0\0\0\0\0\2\0\1a\0\1b", {"a", "b"}),
        (b"", None),
        (b"\xff\xff\0\0\0\0", None),
        (b"\0\0\x7f\0\0\0", None),
        (b"\0\0\0\0\0\1\0\x09a", None),
        (b"\0\0\0\0\0\1\0\1\xff", None),
    ],
)
def test_subscribed_topics_reads_member_metadata(
    subscription: bytes, topics: set[str] | None
) -> None:
    assert subscribed_topics(subscription) == topics
