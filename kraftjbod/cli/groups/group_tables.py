"""PURE. The tables of ``kraftjbod-consumer-groups``, and the same values for ``--json``.

Columns and widths are those of Kafka's tool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from kraftjbod.cli.clients.group_facts import GroupDescription, GroupMember
from kraftjbod.core.ids import TopicPartition

_LEAST: Final = 15
_INSTANCE_LEAST: Final = 17
_COORDINATOR_LEAST: Final = 25
MISSING: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRow:
    """The values of one partition of a group; unknown values are None."""

    group: str
    topic: str
    partition: int
    committed: int | None
    leader_epoch: int | None
    end: int | None
    consumer: str | None = None
    host: str | None = None
    client: str | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)

    def document(self) -> dict[str, Any]:
        """Return all columns except GROUP, for JSON."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "leaderEpoch": self.leader_epoch,
            "currentOffset": self.committed,
            "logEndOffset": self.end,
            "lag": self.lag,
            "consumerId": self.consumer,
            "host": self.host,
            "clientId": self.client,
        }


def offsets_table(rows: Sequence[OffsetRow], *, verbose: bool) -> str:
    """Return the table with offsets and lag of each partition; empty without rows."""
    heads = ["GROUP", "TOPIC", "PARTITION", *["LEADER-EPOCH"] * verbose]
    heads += ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"]
    cells = [
        [
            *(row.group, row.topic, cell(row.partition), *[cell(row.leader_epoch)] * verbose),
            *(cell(row.committed), cell(row.end), cell(row.lag)),
            *(cell(row.consumer), cell(row.host), cell(row.client)),
        ]
        for row in rows
    ]
    least = [_LEAST, _LEAST, 10, *[_LEAST] * verbose, _LEAST, _LEAST, _LEAST, _LEAST, _LEAST, 0]
    return _table(heads, cells, least, fixed={2, 3, 4, 5, *[6] * verbose})


def members_table(rows: Sequence[Mapping[str, str]], *, verbose: bool) -> str:
    """Return the table of members.

    ``rows`` have ``group``, ``consumer``, ``instance``, ``host``, ``client``, ``count``,
    ``assignment``, and the values of :func:`newer_columns`.
    """
    has_instances = any(row["instance"] != MISSING for row in rows)
    names = ["group", "consumer", *["instance"] * has_instances, "host", "client", "count"]
    heads = ["GROUP", "CONSUMER-ID", *["GROUP-INSTANCE-ID"] * has_instances, "HOST", "CLIENT-ID"]
    heads.append("#PARTITIONS")
    least = [_LEAST, _LEAST, *[_INSTANCE_LEAST] * has_instances, _LEAST, _LEAST, _LEAST]
    cells = [[row[name] for name in names] for row in rows]
    if verbose:
        # The protocol of each member is shown only if the group has members of both protocols.
        is_mixed = {"true", "false"} <= {row["upgraded"] for row in rows}
        heads += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        heads += ["UPGRADED"] * is_mixed
        least += [_LEAST, _LEAST, _LEAST, _LEAST if is_mixed else 0, *[0] * is_mixed]
        shown = ["epoch", "assignment", "target_epoch", "target", *["upgraded"] * is_mixed]
        for row, line in zip(rows, cells, strict=True):
            line += [row[name] for name in shown]
    return _table(heads, cells, least)


def states_table(rows: Sequence[Mapping[str, str]], *, verbose: bool) -> str:
    """Return the table of groups.

    ``rows`` have ``group``, ``coordinator``, ``assignor``, ``state``, ``members``, ``epoch`` and
    ``target_epoch``.
    """
    heads = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    least = [_LEAST, _COORDINATOR_LEAST, 20, 20]
    if verbose:
        heads += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        least += [_LEAST, 25]
    cells = [
        [
            *(row["group"], row["coordinator"], row["assignor"] or MISSING, row["state"]),
            *([row["epoch"], row["target_epoch"]] if verbose else []),
            row["members"],
        ]
        for row in rows
    ]
    return _table([*heads, "#MEMBERS"], cells, [*least, 0])


def newer_columns(group: GroupDescription, member: GroupMember) -> dict[str, str]:
    """Return the columns of a member that only groups with the consumer protocol have (KIP-848).

    A value that the group does not have is ``-``.
    """
    has_target = member.target is not None
    upgraded = {None: MISSING, False: "false", True: "true"}[member.is_upgraded]
    return {
        "epoch": cell(member.epoch),
        "target_epoch": cell(group.target_epoch),
        "target": assignment_text(member.target or ()) if has_target else MISSING,
        "upgraded": upgraded,
    }


def epoch_columns(group: GroupDescription) -> dict[str, str]:
    return {"epoch": cell(group.epoch), "target_epoch": cell(group.target_epoch)}


def newer_facts(member: GroupMember) -> dict[str, Any]:
    """Return the values of a member that only the consumer protocol has, for JSON; else empty."""
    if member.epoch is None:
        return {}
    return {
        "memberEpoch": member.epoch,
        "targetPartitions": [named_partition(one) for one in member.target or ()],
        "upgraded": member.is_upgraded,
    }


def newer_epochs(group: GroupDescription) -> dict[str, Any]:
    """Return the epochs of a group that only the consumer protocol has, for JSON; else empty."""
    if group.epoch is None:
        return {}
    return {"groupEpoch": group.epoch, "targetAssignmentEpoch": group.target_epoch}


def list_table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """Return the table of ``--list``: GROUP, and TYPE, STATE or both."""
    width = max([_LEAST, *(len(row[0]) for row in rows)]) + 10
    lines = [heads, *rows]
    return "\n".join(
        " ".join([f"{line[0]:<{width}}", *(f"{cell:<20}" for cell in line[1:])]).rstrip()
        for line in lines
    )


def resets_table(resets: Mapping[str, Mapping[TopicPartition, int]]) -> str:
    cells = [
        [group, partition.topic, str(partition.partition), str(offset)]
        for group, offsets in resets.items()
        for partition, offset in offsets.items()
    ]
    return _table(["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], cells, [_LEAST, _LEAST, 10, 0])


def resets_document(offsets: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """Return the new offsets of one group, for JSON."""
    return [{**named_partition(one), "newOffset": offset} for one, offset in offsets.items()]


def deletions_table(outcomes: Mapping[TopicPartition, str]) -> str:
    cells = [[one.topic, str(one.partition), status] for one, status in outcomes.items()]
    return _table(["TOPIC", "PARTITION", "STATUS"], cells, [_LEAST, 10, _LEAST])


def assignment_text(assignment: Sequence[TopicPartition]) -> str:
    """Return ``topic:0,1;other:0``, the format of assignments in Kafka's tool; ``-`` if empty."""
    if not assignment:
        return MISSING
    return ";".join(
        f"{topic}:{','.join(str(one.partition) for one in own)}"
        for topic, own in groupby(sorted(assignment), key=lambda one: one.topic)
    )


def named_partition(partition: TopicPartition) -> dict[str, Any]:
    """Return a partition for JSON."""
    return {"topic": partition.topic, "partition": partition.partition}


def cell(value: object) -> str:
    return MISSING if value is None else str(value)


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    least: Sequence[int],
    *,
    fixed: Collection[int] = (),
) -> str:
    """Return a table after an empty line. Columns are as wide as their cells unless ``fixed``.

    :param least: minimum width of each column; 0 for no padding.
    :param fixed: indexes of the columns that have exactly their minimum width.
    """
    if not rows:
        return ""
    widths = [
        low if low == 0 or at in fixed else max(low, *(len(row[at]) for row in rows))
        for at, low in enumerate(least)
    ]
    lines = (
        " ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *rows)
    )
    return "\n" + "\n".join(lines)
