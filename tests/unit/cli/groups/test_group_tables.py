"""Tables of ``kraftjbod-consumer-groups`` have the columns of Kafka 4.3's tool."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.cli.clients.group_facts import GroupDescription, GroupMember
from kraftjbod.cli.groups import group_tables
from kraftjbod.cli.groups.group_tables import OffsetRow
from kraftjbod.core.ids import TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
OTHER = TopicPartition("other", 3)


def test_offsets_table_and_document_have_kafkas_columns() -> None:
    held = OffsetRow(
        group="g1",
        topic="t",
        partition=0,
        committed=4,
        leader_epoch=2,
        end=10,
        consumer="cl-14a56e35-85cb-4da5-bcde-0823b4b5f972",
        host="/127.0.0.1",
        client="cl",
    )
    free = OffsetRow(group="g1", topic="t", partition=1, committed=6, leader_epoch=None, end=None)
    assert group_tables.offsets_table([held, free], verbose=False) == (
        "\n"
        "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG"
        "             CONSUMER-ID                             HOST            CLIENT-ID\n"
        "g1              t               0          4               10              6"
        "               cl-14a56e35-85cb-4da5-bcde-0823b4b5f972 /127.0.0.1      cl\n"
        "g1              t               1          6               -               -"
        "               -                                       -               -"
    )
    _, heads, first, _ = group_tables.offsets_table([held, free], verbose=True).split("\n")
    assert heads.split()[3] == "LEADER-EPOCH" and first.split()[3] == "2"
    assert group_tables.offsets_table([], verbose=False) == ""
    assert held.document() == {
        **{"topic": "t", "partition": 0, "leaderEpoch": 2, "currentOffset": 4},
        **{"logEndOffset": 10, "lag": 6, "host": "/127.0.0.1", "clientId": "cl"},
        "consumerId": "cl-14a56e35-85cb-4da5-bcde-0823b4b5f972",
    }
    assert free.document()["lag"] is free.document()["consumerId"] is None


def test_members_table_shows_assignments_and_optional_columns() -> None:
    row = {"group": "g", "consumer": "c", "instance": "-", "host": "/h", "client": "cl"}
    row |= {"count": "3", "assignment": group_tables.assignment_text([ONE, OTHER, ZERO])}
    member = GroupMember(
        member_id="c", instance_id=None, client_id="cl", host="/h", assignment=(ZERO,)
    )
    group = GroupDescription(
        group_id="g", coordinator=1, state="Stable", assignor="range", members=(member,)
    )
    row |= group_tables.newer_columns(group, member)
    _, heads, line = group_tables.members_table([row], verbose=True).split("\n")
    assert "GROUP-INSTANCE-ID" not in heads
    assert line.split() == ["g", "c", "/h", "cl", "3", "-", "other:3;t:0,1", "-", "-"]
    assert group_tables.newer_facts(member) == group_tables.newer_epochs(group) == {}
    newer = replace(member, epoch=4, target=(ZERO, ONE), is_upgraded=True)
    group = replace(group, epoch=6, target_epoch=5)
    rows = [row | group_tables.newer_columns(group, newer), row | {"upgraded": "false"}]
    _, heads, line, _ = group_tables.members_table(rows, verbose=True).split("\n")
    assert heads.split()[-1] == "UPGRADED"
    assert line.split()[5:] == ["4", "other:3;t:0,1", "5", "t:0,1", "true"]
    assert group_tables.newer_facts(newer)["memberEpoch"] == 4
    assert group_tables.newer_epochs(group) == {"groupEpoch": 6, "targetAssignmentEpoch": 5}
    named = {**row, "instance": "static"}
    _, heads, _, line = group_tables.members_table([row, named], verbose=False).split("\n")
    assert heads.split()[2] == "GROUP-INSTANCE-ID" and line.split()[2] == "static"
    assert group_tables.assignment_text([]) == "-"


def test_states_lists_resets_and_deletions_tables_have_kafkas_columns() -> None:
    row = {"group": "g", "coordinator": "h:1  (1)", "assignor": "", "state": "Empty"}
    state = group_tables.states_table([{**row, "members": "0"}], verbose=False)
    assert state.split("\n")[2].split() == ["g", "h:1", "(1)", "-", "Empty", "0"]
    listed = group_tables.list_table([["g", "Classic", "Stable"]], ["GROUP", "TYPE", "STATE"])
    assert listed == (
        "GROUP                     TYPE                 STATE\n"
        "g                         Classic              Stable"
    )
    reset = group_tables.resets_table({"g": {ZERO: 7}})
    assert reset.split("\n")[2] == "g               t               0          7"
    deleted = group_tables.deletions_table({ONE: "Successful"})
    assert deleted.split("\n")[2] == "t               1          Successful"
