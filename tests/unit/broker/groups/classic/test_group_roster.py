"""``GroupRoster``, the members of a group; test_classic_group.py covers the group's behaviour."""

from __future__ import annotations

from kraftjbod.broker.groups.classic.group_events import GroupState, JoinRequested
from kraftjbod.broker.groups.classic.group_roster import GroupRoster, Member
from kraftjbod.core.errors import ErrorCode


def member(member_id: str, instance_id: str | None = None) -> Member:
    request = JoinRequested(
        token=0,
        member_id="",
        fresh_member_id=member_id,
        instance_id=instance_id,
        session_timeout_ms=1,
        rebalance_timeout_ms=len(member_id),
        protocol_type="consumer",
        protocols=(("range", b"r"),),
    )
    return Member(member_id, request)


def test_group_roster_leader_is_the_first_member_and_rename_keeps_its_position() -> None:
    roster = GroupRoster()
    for one in (member("a"), member("bb", "static"), member("ccc")):
        roster.add(one)
    assert (roster.leader, roster.rebalance_timeout_ms()) == ("a", 3)
    roster.remove("a")
    assert roster.leader == "bb"
    roster.rename(roster.members["bb"], "dd")
    assert (list(roster.members), roster.leader) == (["dd", "ccc"], "dd")
    assert roster.check("bb", "static") is ErrorCode.FENCED_INSTANCE_ID
    assert roster.check("dd", "static") is ErrorCode.NONE
    assert roster.check("ccc", "other") is ErrorCode.UNKNOWN_MEMBER_ID


def test_admits_member_prefers_members_that_rejoined_first_in_a_full_group() -> None:
    roster = GroupRoster()
    for one in (member("a"), member("b"), member("c")):
        roster.add(one)
    preparing = GroupState.PREPARING_REBALANCE
    assert roster.admits_member("a", preparing, 1)
    roster.swap_join_token(roster.members["a"], 1)
    assert roster.admits_member("a", preparing, 1)
    assert not roster.admits_member("b", preparing, 1)
    assert roster.admits_member("b", GroupState.STABLE, 1)
    assert not roster.admits_member("new", GroupState.STABLE, 3)
