"""Description of a group of the classic protocol; test_group_admin.py decodes the responses."""

from __future__ import annotations

from kraftjbod.cli.clients.group_facts import GroupDescription, GroupMember


def test_group_description_of_classic_group_has_no_epochs() -> None:
    member = GroupMember(member_id="m", instance_id=None, client_id="c", host="/h", assignment=())
    group = GroupDescription(
        group_id="g", coordinator=1, state="Stable", assignor="range", members=(member,)
    )
    assert member.epoch is member.target is member.is_upgraded is None
    assert group.epoch is group.target_epoch is None
