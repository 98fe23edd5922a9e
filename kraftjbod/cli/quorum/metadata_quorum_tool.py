"""WIRE. ``kraftjbod-metadata-quorum``: who votes on the metadata, who leads, who follows how far.

Flags, lines and exit codes are those of Kafka's ``kafka-metadata-quorum.sh``, also against a real
Kafka when it is asked by ``--bootstrap-server``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from kraftjbod.cli.quorum.quorum_admin import (
    QuorumDescription,
    QuorumReplica,
    describe_quorum,
    describe_quorum_by_controllers,
    require_leader,
)
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    config_option,
    report,
    timeout_option,
    tool_group,
)
from kraftjbod.core.errors import KraftJbodError

_LABEL_WIDTH: Final = 24
_COLUMNS: Final = (
    *("NodeId", "DirectoryId", "LogEndOffset", "Lag"),
    *("LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"),
)
#: What Kafka prints where a replica's directory is not known.
_NO_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAA"


class QuorumCommandError(KraftJbodError):
    """The order makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """Whom to ask: brokers, or the controllers."""

    brokers: str | None
    controllers: str | None
    command_config: str | None
    timeout_ms: int

    async def describe(self) -> QuorumDescription:
        if self.controllers is not None:
            return await describe_quorum_by_controllers(
                self.controllers, timeout_ms=self.timeout_ms, report=report
            )
        assert self.brokers is not None, "one of them is given"
        cluster = ClusterAddress(
            bootstrap_server=self.brokers,
            command_config=self.command_config,
            timeout_ms=self.timeout_ms,
        )
        async with cluster.connect() as client:
            return await client.retry(lambda: describe_quorum(client))


@tool_group()
@click.option("--bootstrap-server", metavar="HOST:PORT,...", help="Brokers to ask first.")
@click.option("--bootstrap-controller", metavar="HOST:PORT,...", help="Controllers to ask instead.")
@config_option
@timeout_option
@click.pass_context
def main(
    context: click.Context,
    /,
    bootstrap_server: str | None,
    bootstrap_controller: str | None,
    command_config: str | None,
    give_up_ms: int,
) -> None:
    """Describe and change the quorum of controllers."""
    if (bootstrap_server is None) == (bootstrap_controller is None):
        raise click.UsageError(
            "Exactly one of --bootstrap-server or --bootstrap-controller must be specified"
        )
    context.obj = Quorum(
        brokers=bootstrap_server,
        controllers=bootstrap_controller,
        command_config=command_config,
        timeout_ms=give_up_ms,
    )


# --- describe ------------------------------------------------------------------------------------


@main.command("describe")
@click.option("--status", is_flag=True, help="Who leads and votes, and how far the last one is.")
@click.option("--replication", is_flag=True, help="How far each replica is.")
@click.option("--human-readable", is_flag=True, help="With --replication: how long ago it was.")
@answering
@click.pass_obj
def describe_command(
    quorum: Quorum, answer: Answer, status: bool, replication: bool, human_readable: bool
) -> None:
    """Report how the quorum is."""
    if status and replication:
        raise QuorumCommandError(
            "Only one of --status or --replication should be specified with describe sub-command"
        )
    if not (status or replication):
        raise QuorumCommandError(
            "One of --status or --replication must be specified with describe sub-command"
        )
    if human_readable and not replication:
        raise QuorumCommandError(
            "The option --human-readable is only supported along with --replication"
        )
    found = asyncio.run(quorum.describe())
    if status:
        _say_status(answer, found)
    else:
        _say_replication(answer, found, now_ms=_now_ms() if human_readable else None)


def _say_status(answer: Answer, found: QuorumDescription) -> None:
    leader = require_leader(found)
    last = min(found.voters, key=lambda voter: voter.log_end_offset)
    facts: dict[str, Any] = {
        "ClusterId": found.cluster_id,
        "LeaderId": found.leader_id,
        "LeaderEpoch": found.leader_epoch,
        "HighWatermark": found.high_watermark,
        "MaxFollowerLag": leader.log_end_offset - last.log_end_offset,
        "MaxFollowerLagTimeMs": _lag_time_ms(leader, last),
        "CurrentVoters": list(map(_named, found.voters)),
        "CurrentObservers": list(map(_named, found.observers)),
    }
    for label, fact in facts.items():
        text = json.dumps(fact) if isinstance(fact, list) else fact
        key = label[0].lower() + label[1:]
        answer.say(f"{label + ':':<{_LABEL_WIDTH}}{text}", **{key: fact})


def _lag_time_ms(leader: QuorumReplica, last: QuorumReplica) -> int:
    if leader is last:
        return 0
    if -1 in (leader.last_caught_up_ms, last.last_caught_up_ms):
        return -1
    return leader.last_caught_up_ms - last.last_caught_up_ms


def _named(replica: QuorumReplica) -> dict[str, Any]:
    named: dict[str, Any] = {"id": replica.node_id}
    if replica.directory_id is not None:
        named["directoryId"] = replica.directory_id
    if replica.endpoints:
        named["endpoints"] = list(replica.endpoints)
    return named


def _say_replication(answer: Answer, found: QuorumDescription, *, now_ms: int | None) -> None:
    leader = require_leader(found)
    others = [voter for voter in found.voters if voter is not leader]
    rows = [
        (replica, status)
        for status, replicas in (
            ("Leader", [leader]),
            ("Follower", others),
            ("Observer", found.observers),
        )
        for replica in replicas
    ]
    cells = [_cells(replica, leader, status, now_ms) for replica, status in rows]
    for line in _table([_COLUMNS, *cells]):
        answer.say(line)
    answer.say(
        None,
        replicas=[
            {
                **_named(replica),
                "status": status,
                "logEndOffset": replica.log_end_offset,
                "lag": leader.log_end_offset - replica.log_end_offset,
                "lastFetchTimestamp": replica.last_fetch_ms,
                "lastCaughtUpTimestamp": replica.last_caught_up_ms,
            }
            for replica, status in rows
        ],
    )


def _cells(
    replica: QuorumReplica, leader: QuorumReplica, status: str, now_ms: int | None
) -> tuple[str, ...]:
    return (
        str(replica.node_id),
        replica.directory_id or _NO_DIRECTORY,
        str(replica.log_end_offset),
        str(leader.log_end_offset - replica.log_end_offset),
        _time_text(replica.last_fetch_ms, now_ms),
        _time_text(replica.last_caught_up_ms, now_ms),
        status,
    )


def _time_text(wall_ms: int, now_ms: int | None) -> str:
    if now_ms is None or wall_ms < 0:
        return str(wall_ms)
    if wall_ms > now_ms:
        raise QuorumCommandError(
            "Error while computing relative time, possible drift in system clock: "
            f"{wall_ms - now_ms} ms ahead of this machine"
        )
    return f"{now_ms - wall_ms} ms ago"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells as wide as their column and followed by a tab each, as Kafka's tools print them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main(prog_name="kraftjbod-metadata-quorum")
