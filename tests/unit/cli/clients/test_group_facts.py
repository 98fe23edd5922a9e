"""What is said of a group of either protocol; how it is read from answers: test_group_admin."""

from __future__ import annotations

from kraftjbod.cli.clients.group_facts import GroupDescription, GroupMember


def test_of_the_older_protocol_less_is_known() -> None:
    member = GroupMember(member_id="m", instance_id=None, client_id="c", host="/h", assignment=())
    group = GroupDescription(
        group_id="g", coordinator=1, state="Stable", assignor="range", members=(member,)
    )
    assert member.epoch is member.target is member.is_upgraded is None
    assert group.epoch is group.target_epoch is None
