"""WIRE. ``kraftjbod-reassign-partitions``: moves replicas between brokers and disks, as Kafka's
tool.

It has two additions to Kafka's tool: ``dirid:<id>`` in the file in place of a path, and
``--progress``, which waits until everything has moved and shows the progress of each replica.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import click
from click.core import ParameterSource

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentPlan,
    parse_broker_list,
    parse_reassignment,
    parse_topics,
)
from kraftjbod.cli.reassignment.reassignment_progress import follow, show_once
from kraftjbod.cli.reassignment.reassignment_run import (
    ExecuteOptions,
    cancel,
    copies_under_way,
    execute,
    generate,
    list_ongoing,
    verify,
)
from kraftjbod.cli.terminal.command import (
    PATIENCE_MS,
    TOOL_TIMEOUT_MS,
    Answer,
    ClusterAddress,
    json_option,
    read_file,
    server_options,
    tool,
)

#: Minimum timeout of the connection if ``--timeout`` allows only one request for replicas.
_LEAST_TIMEOUT_MS: Final = 1_000

_EVERYWHERE: Final = frozenset({"bootstrap_server", "command_config", "timeout", "as_json"})
_NEEDED: Final = {
    "generate": ("topics_to_move_json_file", "broker_list"),
    "execute": ("reassignment_json_file",),
    "verify": ("reassignment_json_file",),
    "cancel": ("reassignment_json_file",),
    "list": (),
}
_ALLOWED: Final = {
    "generate": ("disable_rack_aware",),
    "execute": (
        "additional",
        "throttle",
        "replica_alter_log_dirs_throttle",
        "disallow_replication_factor_change",
        "progress",
    ),
    "verify": ("preserve_throttles", "progress"),
    "cancel": ("preserve_throttles",),
    "list": (),
}


@tool()
@server_options
@click.option("--generate", is_flag=True, help="Propose a new assignment; changes nothing.")
@click.option("--execute", is_flag=True, help="Start the reassignment in the file.")
@click.option(
    "--verify",
    is_flag=True,
    help="Report the progress. Remove the throttles if all moves are complete.",
)
@click.option("--cancel", is_flag=True, help="Cancel the moves of the file that are in progress.")
@click.option("--list", is_flag=True, help="List the reassignments in progress.")
@click.option("--reassignment-json-file", metavar="FILE", help="File with the reassignment.")
@click.option(
    "--topics-to-move-json-file", metavar="FILE", help="File with the topics for --generate."
)
@click.option("--broker-list", metavar="1,2,...", help="Brokers that --generate may use.")
@click.option("--disable-rack-aware", is_flag=True, help="--generate ignores racks.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="B/S",
    help="Limit per broker for moves between brokers. With --additional it "
    "changes the present limit.",
)
@click.option(
    "--replica-alter-log-dirs-throttle",
    type=click.IntRange(min=1),
    metavar="B/S",
    help="Limit per broker for moves between its directories.",
)
@click.option(
    "--timeout",
    type=click.IntRange(min=0),
    metavar="MS",
    default=TOOL_TIMEOUT_MS,
    show_default=True,
    help="Time to reach the cluster (at least a second), and to wait for "
    "replicas that brokers do not have yet. In milliseconds, as in "
    "Kafka's tool.",
)
@click.option(
    "--additional", is_flag=True, help="Start although other reassignments are in progress."
)
@click.option("--preserve-throttles", is_flag=True, help="Do not change throttles.")
@click.option(
    "--disallow-replication-factor-change",
    is_flag=True,
    help="Refuse changes of a partition's replication factor.",
)
@click.option(
    "--progress", is_flag=True, help="Wait for the end of all moves, and show the progress."
)
@json_option
@click.pass_context
def main(context: click.Context, /, cluster: ClusterAddress, as_json: bool, **flags: Any) -> None:
    """Move replicas between brokers, and between the log directories of a broker."""
    actions = [action for action in _NEEDED if flags[action]]
    if len(actions) != 1:
        known = ", ".join(f"--{action}" for action in _NEEDED)
        raise click.UsageError(f"Command must include exactly one action: {known}")
    _require_sense(context, actions[0])
    cluster = replace(cluster, timeout_ms=max(flags["timeout"], _LEAST_TIMEOUT_MS))
    asyncio.run(_perform(cluster, Answer(as_json=as_json), actions[0], flags))


def _require_sense(context: click.Context, action: str) -> None:
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    for name in _NEEDED[action]:
        if name not in given:
            raise click.UsageError(f"--{action} needs {_flag(name)}")
    foreign = given - _EVERYWHERE - {action, *_NEEDED[action], *_ALLOWED[action]}
    if foreign:
        raise click.UsageError(f"Option {_flag(min(foreign))} can't be used with --{action}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


async def _perform(
    cluster: ClusterAddress, answer: Answer, action: str, flags: dict[str, Any]
) -> None:
    work: Callable[[ClusterClient, Answer], Awaitable[None]]
    match action:
        case "list":
            work = list_ongoing
        case "generate":
            work = partial(
                generate,
                topics=parse_topics(read_file(flags["topics_to_move_json_file"])),
                brokers=parse_broker_list(flags["broker_list"]),
                is_rack_aware=not flags["disable_rack_aware"],
                random_below=random.randrange,
            )
        case _:
            plan = parse_reassignment(read_file(flags["reassignment_json_file"]))
            work = partial(_move, plan=plan, action=action, flags=flags)
    async with cluster.connect(patience_ms=PATIENCE_MS) as client:
        with answer:
            await work(client, answer)


async def _move(
    client: ClusterClient,
    answer: Answer,
    *,
    plan: ReassignmentPlan,
    action: str,
    flags: dict[str, Any],
) -> None:
    preserve_throttles: bool = flags["preserve_throttles"]
    if action == "cancel":
        await cancel(
            client,
            answer,
            plan,
            preserve_throttles=preserve_throttles,
            timeout_ms=flags["timeout"],
        )
        return
    if action == "execute":
        options = ExecuteOptions(
            timeout_ms=flags["timeout"],
            throttle=flags["throttle"],
            mover_throttle=flags["replica_alter_log_dirs_throttle"],
            is_additional=flags["additional"],
            allow_replication_factor_change=not flags["disallow_replication_factor_change"],
        )
        await execute(client, answer, plan, options)
    if flags["progress"]:
        await follow(partial(copies_under_way, client, plan))
    if action == "verify" or flags["progress"]:
        await verify(client, answer, plan, preserve_throttles=preserve_throttles)
    if action == "verify" and sys.stderr.isatty():
        show_once(await copies_under_way(client, plan))


if __name__ == "__main__":
    main(prog_name="kraftjbod-reassign-partitions")
