"""WIRE. ``kraftjbod-consumer-groups``: lists, describes, resets and deletes consumer groups.

Flags, columns and lines are those of Kafka's ``kafka-consumer-groups.sh``, and the tool works with
Kafka too. ``--json`` has the same values. Unlike Kafka's, the tool exits with code 1 after any
failure, and reports it on standard error.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import click

from kraftjbod.cli.clients import group_admin
from kraftjbod.cli.clients.cluster_admin import EARLIEST, LATEST, list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.group_admin import DEAD, Committed
from kraftjbod.cli.clients.group_facts import GroupDescription
from kraftjbod.cli.groups import group_tables, offset_reset
from kraftjbod.cli.groups.group_tables import OffsetRow
from kraftjbod.cli.groups.offset_reset import Bounds
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    read_file,
    report,
    server_options,
    tool,
)
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.text.linear_pattern import LinearPattern, PatternError

_EMPTY: Final = "Empty"
_REBALANCING: Final = frozenset(
    {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}
)
_STATES: Final = {name.lower(): name for name in (*_REBALANCING, "Stable", _EMPTY, DEAD)}
_TYPES: Final = ("classic", "consumer")
_ANY: Final = ""
_ACTIONS: Final = (
    *("list", "describe", "delete", "reset_offsets", "delete_offsets"),
    "validate_regex",
)
_SCENARIOS: Final = (
    *("to_offset", "shift_by", "to_datetime", "by_duration"),
    *("to_earliest", "to_latest", "to_current", "from_file"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The values of the flags."""

    groups: tuple[str, ...]
    all_groups: bool
    topics: tuple[str, ...]
    all_topics: bool
    verbose: bool
    flags: Mapping[str, Any]

    def one_of(self, names: Collection[str], what: str, *, needed: bool = True) -> str | None:
        """Return the name of the flag in ``names`` that is given; None without one.

        :param what: subject of the choice, for the error.
        :raises click.UsageError: several flags are given, or none although one is needed.
        """
        given = [name for name in names if self.flags[name] not in (None, False)]
        if len(given) > 1 or (needed and not given):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
            raise click.UsageError(
                f"{what}: give {'exactly' if needed else 'at most'} one of {flags}"
            )
        return given[0] if given else None


@tool()
@partial(server_options, required=False)
@click.option("--list", is_flag=True, help="List all groups.")
@click.option("--describe", is_flag=True, help="Describe groups and their lag.")
@click.option("--delete", is_flag=True, help="Delete groups without members, and their offsets.")
@click.option("--reset-offsets", is_flag=True, help="Set the offsets of a group without members.")
@click.option(
    "--delete-offsets", is_flag=True, help="Delete the committed offsets of a group for topics."
)
@click.option(
    "--validate-regex",
    metavar="REGEX",
    help="Check whether a consumer may subscribe to this expression (RE2). Needs no cluster.",
)
@click.option("--group", "groups", multiple=True, help="The group; may be given several times.")
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1]",
    help="Topics, with optional partitions.",
)
@click.option("--all-topics", is_flag=True, help="All topics with committed offsets of the group.")
@click.option("--offsets", is_flag=True, help="--describe: offsets and lag (default).")
@click.option("--members", is_flag=True, help="--describe: the members.")
@click.option(
    "--state",
    is_flag=False,
    flag_value=_ANY,
    default=None,
    metavar="[STATES]",
    help="--describe: the group's state. --list: states as well, or only groups in some.",
)
@click.option(
    "--type",
    "type_",
    is_flag=False,
    flag_value=_ANY,
    default=None,
    metavar="[TYPES]",
    help="--list: types as well, or only groups of some.",
)
@click.option("--verbose", is_flag=True, help="--describe: more columns.")
@click.option("--to-offset", type=click.IntRange(min=0), help="Set to this offset.")
@click.option("--shift-by", type=int, help="Move each offset by this number, forward or back.")
@click.option("--to-datetime", help="Set to the first record from YYYY-MM-DDThh:mm:ss.sss on.")
@click.option("--by-duration", help="Set to the first record of the last PnDTnHnMnS.")
@click.option("--to-earliest", is_flag=True, help="Set to the beginning.")
@click.option("--to-latest", is_flag=True, help="Set to the end.")
@click.option(
    "--to-current",
    is_flag=True,
    help="Set to the committed offset, or to the end if there is none.",
)
@click.option(
    "--from-file", type=click.Path(dir_okay=False), help="Set to the offsets in a CSV file."
)
@click.option(
    "--dry-run", is_flag=True, help="Print the new offsets without setting them (default)."
)
@click.option("--execute", is_flag=True, help="Set the offsets.")
@click.option("--export", is_flag=True, help="Print CSV, for --from-file.")
@click.option(
    "--timeout", "timeout_ms", type=int, default=30_000, show_default=True, help="Milliseconds."
)
@answering
def main(answer: Answer, cluster: ClusterAddress, **flags: Any) -> None:
    """List, describe, reset and delete consumer groups."""
    asked = _Asked(
        groups=flags["groups"],
        all_groups=flags["all_groups"],
        topics=flags["topics"],
        all_topics=flags["all_topics"],
        verbose=flags["verbose"],
        flags=flags,
    )
    action = asked.one_of(_ACTIONS, "what to do")
    if action == "validate_regex":
        sys.exit(_validate(answer, flags["validate_regex"]))
    if action != "list" and not asked.groups and not asked.all_groups:
        raise click.UsageError(f"--{str(action).replace('_', '-')} needs --group or --all-groups")
    address = replace(cluster, timeout_ms=flags["timeout_ms"])
    failed = asyncio.run(_perform(address, answer, str(action), asked))
    if failed:
        sys.stdout.flush()
        sys.exit(1)


def _validate(answer: Answer, pattern: str) -> int:
    """Check a regular expression as brokers do, print the result, and return the exit code."""
    why: str | None = None
    try:
        LinearPattern(pattern)
    except PatternError as e:
        why = e.why
    verdict = "is valid." if why is None else f"is invalid: {why}."
    said = f"The regular expression `{pattern}` {verdict}"
    answer.say(said, regex=pattern, isValid=why is None, reason=why)
    return 0 if why is None else 1


async def _perform(cluster: ClusterAddress, answer: Answer, action: str, asked: _Asked) -> bool:
    """Run the command; return whether a failure was reported."""
    async with cluster.connect() as client:
        await client.retry(client.refresh_metadata)
        if action == "list":
            await _list(client, answer, asked)
            return False
        groups = list(dict.fromkeys(asked.groups))
        if asked.all_groups:
            listed = await client.retry(lambda: group_admin.list_groups(client))
            groups = [one.group_id for one in listed]
        match action:
            case "describe":
                return await _describe(client, answer, groups, asked)
            case "delete":
                return await _delete(client, answer, groups)
            case "reset_offsets":
                return await _reset(client, answer, groups, asked)
            case _:
                return await _delete_offsets(client, answer, groups, asked)


# --- list, describe ------------------------------------------------------------------------------


async def _list(client: ClusterClient, answer: Answer, asked: _Asked) -> None:
    states = _words(asked.flags["state"], _STATES, "state")
    types = _words(asked.flags["type_"], {name: name for name in _TYPES}, "type")
    listed = await client.retry(lambda: group_admin.list_groups(client, states or (), types or ()))
    documents = [
        {"group": one.group_id, "type": one.group_type or None, "state": one.state or None}
        for one in listed
    ]
    if states is None and types is None:
        answer.say("\n".join(one.group_id for one in listed) or None, groups=documents)
        return
    heads = ["GROUP", *["TYPE"] * (types is not None), *["STATE"] * (states is not None)]
    rows = [
        [
            one.group_id,
            *[one.group_type.capitalize()] * (types is not None),
            *[one.state] * (states is not None),
        ]
        for one in listed
    ]
    answer.say(group_tables.list_table(rows, heads), groups=documents)


def _words(text: str | None, known: Mapping[str, str], what: str) -> list[str] | None:
    """Return the values of a flag in Kafka's spelling; None without the flag, [] without a value.

    :raises click.UsageError: an unknown word.
    """
    if text is None:
        return None
    given = [word.strip().lower() for word in text.split(",") if word.strip()]
    for word in given:
        if word not in known:
            raise click.UsageError(f"--{what}: {word!r} is none of {', '.join(known.values())}")
    return [known[word] for word in given]


async def _describe(
    client: ClusterClient, answer: Answer, groups: Sequence[str], asked: _Asked
) -> bool:
    form = asked.one_of(("offsets", "members", "state"), "--describe", needed=False)
    described = await client.retry(lambda: group_admin.describe_groups(client, groups))
    present = [one for one in described.values() if one.state != DEAD]
    answer.say(None, groups=[])
    for one in described.values():
        if one.state == DEAD:
            missing = f"Consumer group '{one.group_id}' does not exist."
            report(f"error: {missing}")
            answer.say(None, groups=[{"group": one.group_id, "error": missing}])
        elif one.state == _EMPTY:
            report(f"Consumer group '{one.group_id}' has no active members.")
        elif one.state in _REBALANCING:
            report(f"Warning: Consumer group '{one.group_id}' is rebalancing.")
    for one in present:
        if form == "members":
            text = group_tables.members_table(_member_rows(one), verbose=asked.verbose)
            facts = {"members": _members_document(one)}
        elif form == "state":
            text = group_tables.states_table([_state_row(client, one)], verbose=asked.verbose)
            facts = _state_document(client, one)
        else:
            rows = await _offset_rows(client, one)
            text = group_tables.offsets_table(rows, verbose=asked.verbose)
            facts = {"partitions": [row.document() for row in rows]}
        document = {"group": one.group_id, "state": one.state, **facts}
        answer.say(text or None, groups=[document])
    return len(present) < len(described)


def _member_rows(group: GroupDescription) -> list[dict[str, str]]:
    return [
        {
            "group": group.group_id,
            "consumer": one.member_id,
            "instance": one.instance_id or group_tables.MISSING,
            "host": one.host,
            "client": one.client_id,
            "count": str(len(one.assignment)),
            "assignment": group_tables.assignment_text(one.assignment),
            **group_tables.newer_columns(group, one),
        }
        for one in group.members
    ]


def _members_document(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "consumerId": one.member_id,
            "groupInstanceId": one.instance_id,
            "host": one.host,
            "clientId": one.client_id,
            "partitions": [group_tables.named_partition(own) for own in one.assignment],
            **group_tables.newer_facts(one),
        }
        for one in group.members
    ]


def _state_document(client: ClusterClient, group: GroupDescription) -> dict[str, Any]:
    node = client.metadata.brokers[group.coordinator]
    return {
        "coordinator": {"broker": node.node_id, "host": node.host, "port": node.port},
        "assignmentStrategy": group.assignor or None,
        "memberCount": len(group.members),
        **group_tables.newer_epochs(group),
    }


def _state_row(client: ClusterClient, group: GroupDescription) -> dict[str, str]:
    node = client.metadata.brokers[group.coordinator]
    return {
        "group": group.group_id,
        "coordinator": f"{node.host}:{node.port}  ({node.node_id})",
        "assignor": group.assignor,
        "state": group.state,
        "members": str(len(group.members)),
        **group_tables.epoch_columns(group),
    }


async def _offset_rows(client: ClusterClient, group: GroupDescription) -> list[OffsetRow]:
    """Return a row per partition: assigned partitions first, those of members with most partitions
    first."""
    committed = await client.retry(lambda: group_admin.committed_offsets(client, group.group_id))
    members = sorted(group.members, key=lambda one: -len(one.assignment))
    assigned = [(partition, member) for member in members for partition in member.assignment]
    held = {partition for partition, _ in assigned}
    ends = await _offsets_at(client, [*held, *committed.keys() - held], LATEST, missing_ok=True)

    def row(partition: TopicPartition, **whose: str) -> OffsetRow:
        found = committed.get(partition)
        return OffsetRow(
            group=group.group_id,
            topic=partition.topic,
            partition=partition.partition,
            committed=None if found is None else found.offset,
            leader_epoch=None if found is None or found.leader_epoch < 0 else found.leader_epoch,
            end=ends.get(partition),
            **whose,
        )

    return [
        *(
            row(partition, consumer=one.member_id, host=one.host, client=one.client_id)
            for partition, one in assigned
        ),
        *(row(partition) for partition in sorted(committed.keys() - held)),
    ]


async def _offsets_at(
    client: ClusterClient,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    *,
    missing_ok: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition for ``timestamp``.

    :param missing_ok: whether to skip deleted topics and partitions without a leader.
    """
    found: dict[TopicPartition, int] = {}
    for topic, own in group_admin.by_topic(partitions).items():
        numbers = [one.partition for one in own]
        try:
            offsets = await client.retry(partial(list_offsets, client, topic, numbers, timestamp))
        except OperatingError as e:
            if not missing_ok:
                raise
            report(f"The end of {topic} is not known: {e}")
            offsets = {}
        found |= {TopicPartition(topic, number): offset for number, offset in offsets.items()}
    return found


# --- delete --------------------------------------------------------------------------------------


async def _delete(client: ClusterClient, answer: Answer, groups: Sequence[str]) -> bool:
    outcomes = await client.retry(lambda: group_admin.delete_groups(client, groups))
    gone = ", ".join(f"'{name}'" for name, error in outcomes.items() if error is None)
    failed = {name: error for name, error in outcomes.items() if error is not None}
    documents = [{"group": name, "error": error and str(error)} for name, error in outcomes.items()]
    answer.say(None, groups=documents)
    if not failed:
        answer.say(f"Deletion of requested consumer groups ({gone}) was successful.")
        return False
    report("error: Deletion of some consumer groups failed:")
    for name, error in failed.items():
        report(f"* Group '{name}' could not be deleted due to: {error}")
    if gone:
        answer.say(f"These consumer groups were deleted successfully: {gone}")
    return True


async def _delete_offsets(
    client: ClusterClient, answer: Answer, groups: Sequence[str], asked: _Asked
) -> bool:
    if len(groups) != 1 or not asked.topics:
        raise click.UsageError("--delete-offsets needs one --group, and --topic")
    (group,) = groups
    committed = await client.retry(lambda: group_admin.committed_offsets(client, group))
    wanted = _in_scope(client, asked.topics, committed)
    outcomes = await client.retry(lambda: group_admin.delete_offsets(client, group, wanted))
    failed = any(error is not None for error in outcomes.values())
    if failed:
        report(f"error: some offsets of group {group} could not be deleted.")
    else:
        answer.say(f"Request succeeded for deleting offsets from group {group}.")
    status = {
        partition: "Successful" if error is None else f"Error: {error}"
        for partition, error in outcomes.items()
    }
    documents = [
        {**group_tables.named_partition(partition), "error": error and str(error)}
        for partition, error in outcomes.items()
    ]
    answer.say(group_tables.deletions_table(status), group=group, partitions=documents)
    return failed


def _in_scope(
    client: ClusterClient, scopes: Iterable[str], committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """Return the partitions that ``scopes`` name, sorted.

    A topic without numbers stands for all its partitions. If the topic is deleted, it stands for
    the partitions with a committed offset.
    """
    wanted: dict[TopicPartition, None] = {}
    for scope in scopes:
        topic, numbers = offset_reset.parse_scope(scope)
        if numbers is None:
            metadata = client.metadata.topics.get(topic)
            known = () if metadata is None else metadata.partitions
            numbers = tuple(known) or tuple(
                one.partition for one in committed if one.topic == topic
            )
        wanted |= dict.fromkeys(TopicPartition(topic, number) for number in numbers)
    return sorted(wanted)


# --- reset ---------------------------------------------------------------------------------------


async def _reset(
    client: ClusterClient, answer: Answer, groups: Sequence[str], asked: _Asked
) -> bool:
    scenario = str(asked.one_of(_SCENARIOS, "--reset-offsets"))
    if scenario != "from_file" and not asked.topics and not asked.all_topics:
        raise click.UsageError("--reset-offsets needs --topic or --all-topics")
    asked.one_of(("dry_run", "execute"), "--reset-offsets", needed=False)
    if not asked.flags["execute"] and not asked.flags["dry_run"]:
        report("No action will be performed as the --execute option is missing.")
    described = await client.retry(lambda: group_admin.describe_groups(client, groups))
    answer.say(None, groups=[])
    failed, resets = False, {}
    from_file = _from_file(asked, groups)
    for group, one in described.items():
        if one.state not in (_EMPTY, DEAD):
            failed = True
            refusal = (
                f"Assignments can only be reset if the group '{group}' is inactive, but "
                f"the current state is {one.state}."
            )
            report(f"error: {refusal}")
            answer.say(None, groups=[{"group": group, "error": refusal}])
            continue
        resets[group] = await _planned(client, group, scenario, asked, from_file.get(group, {}))
    is_executed = asked.flags["execute"]
    for group, offsets in resets.items():
        if is_executed:
            await _commit(client, group, offsets)
        partitions = group_tables.resets_document(offsets)
        document = {"group": group, "isExecuted": is_executed, "partitions": partitions}
        answer.say(None, groups=[document])
    text = offset_reset.export(resets, has_several_groups=len(described) > 1).rstrip("\n")
    answer.say(text if asked.flags["export"] else group_tables.resets_table(resets))
    return failed


def _from_file(asked: _Asked, groups: Sequence[str]) -> Mapping[str, Mapping[TopicPartition, int]]:
    path = asked.flags["from_file"]
    return {} if path is None else offset_reset.parse_file(read_file(path), groups)


async def _commit(client: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    wanted = {partition: Committed(offset=offset) for partition, offset in offsets.items()}
    if wanted:
        await client.retry(lambda: group_admin.commit_offsets(client, group, wanted))


async def _planned(
    client: ClusterClient,
    group: str,
    scenario: str,
    asked: _Asked,
    from_file: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the new offset of each partition in scope, limited to its log."""
    committed = {
        partition: found.offset
        for partition, found in (
            await client.retry(lambda: group_admin.committed_offsets(client, group))
        ).items()
    }
    scope = _in_scope(client, asked.topics, committed)
    if scenario == "from_file":
        scope = sorted(from_file)
    elif asked.all_topics:
        scope = sorted({*scope, *committed})
    earliest = await _offsets_at(client, scope, EARLIEST)
    latest = await _offsets_at(client, scope, LATEST)
    bounds = {one: Bounds(earliest=earliest[one], latest=latest[one]) for one in scope}
    flags = asked.flags
    match scenario:
        case "to_earliest":
            return earliest
        case "to_latest":
            return latest
        case "to_offset":
            return offset_reset.clamped(dict.fromkeys(scope, flags["to_offset"]), bounds, report)
        case "from_file":
            return offset_reset.clamped(from_file, bounds, report)
        case "to_current":
            return {one: committed.get(one, latest[one]) for one in scope}
        case "shift_by":
            return offset_reset.shifted(committed, scope, flags["shift_by"], bounds)
        case _:
            instant_ms = _instant_ms(scenario, flags)
            found = await _offsets_at(client, scope, instant_ms)
            return {one: latest[one] if found[one] < 0 else found[one] for one in scope}


def _instant_ms(scenario: str, flags: Mapping[str, Any]) -> int:
    if scenario == "to_datetime":
        return offset_reset.parse_instant_ms(flags["to_datetime"])
    now_ms = time.time_ns() // 1_000_000
    return max(0, now_ms - offset_reset.parse_duration_ms(flags["by_duration"]))


if __name__ == "__main__":
    main(prog_name="kraftjbod-consumer-groups")
