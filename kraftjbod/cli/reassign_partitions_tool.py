"""``kraftjbod-reassign-partitions``: move replicas between brokers and disks, as Kafka's tool does.

Beside Kafka's flags: ``dirid:<id>`` in the file where Kafka wants a path, and ``--progress``,
which waits until everything has moved and shows how far each replica is.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.cli.command import connection_options, fail, make_client, run
from kraftjbod.cli.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    parse_broker_list,
    parse_reassignment,
    parse_topics,
)
from kraftjbod.cli.reassignment_progress import follow, show_once
from kraftjbod.cli.reassignment_run import (
    ExecuteOptions,
    RefusedError,
    cancel,
    execute,
    generate,
    list_ongoing,
    look,
    verify,
)

_DEFAULT_TIMEOUT_MS: Final = 10_000

_EVERYWHERE: Final = frozenset({"bootstrap_server", "command_config"})
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
        "timeout",
        "disallow_replication_factor_change",
        "progress",
    ),
    "verify": ("preserve_throttles", "progress"),
    "cancel": ("preserve_throttles", "timeout"),
    "list": (),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@connection_options
@click.option("--generate", is_flag=True, help="Propose a new assignment; changes nothing.")
@click.option("--execute", is_flag=True, help="Begin the reassignment of the file.")
@click.option(
    "--verify", is_flag=True, help="Tell how far it is; when it is done, take the throttles off."
)
@click.option("--cancel", is_flag=True, help="Bring back what of it is still on its way.")
@click.option("--list", is_flag=True, help="Show what is being reassigned.")
@click.option("--reassignment-json-file", metavar="FILE", help="Which replica goes where.")
@click.option("--topics-to-move-json-file", metavar="FILE", help="For --generate.")
@click.option("--broker-list", metavar="1,2,...", help="Where --generate may put replicas.")
@click.option("--disable-rack-aware", is_flag=True, help="--generate does not look at racks.")
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="B/S",
    help="Limit per broker for moves between brokers. Given again with --additional, it changes.",
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
    default=_DEFAULT_TIMEOUT_MS,
    show_default=True,
    help="How long to ask brokers for replicas that they do not have yet.",
)
@click.option("--additional", is_flag=True, help="Begin although others are on their way.")
@click.option("--preserve-throttles", is_flag=True, help="Leave throttles as they are.")
@click.option(
    "--disallow-replication-factor-change",
    is_flag=True,
    help="Refuse a partition that would have more or fewer replicas.",
)
@click.option("--progress", is_flag=True, help="Wait until all has moved, and show how far it is.")
@click.pass_context
def main(context: click.Context, /, **flags: Any) -> None:
    """Move replicas between brokers, and between the log directories of a broker."""
    actions = [action for action in _NEEDED if flags[action]]
    if len(actions) != 1:
        known = ", ".join(f"--{action}" for action in _NEEDED)
        raise click.UsageError(f"Command must include exactly one action: {known}")
    _require_sense(context, actions[0])
    run(_perform(actions[0], flags), failed="Error")


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


async def _perform(action: str, flags: dict[str, Any]) -> None:
    async with make_client(flags["bootstrap_server"], flags["command_config"]) as client:
        try:
            if action == "generate":
                await _generate(client, flags)
            elif action == "list":
                await list_ongoing(client)
            else:
                plan = parse_reassignment(_read(flags["reassignment_json_file"]))
                await _move(client, action, plan, flags)
        except RefusedError as e:
            fail(str(e))


async def _generate(client: ClusterClient, flags: dict[str, Any]) -> None:
    await generate(
        client,
        parse_topics(_read(flags["topics_to_move_json_file"])),
        parse_broker_list(flags["broker_list"]),
        is_rack_aware=not flags["disable_rack_aware"],
        random_below=random.randrange,
    )


async def _move(
    client: ClusterClient, action: str, plan: ReassignmentPlan, flags: dict[str, Any]
) -> None:
    preserve_throttles: bool = flags["preserve_throttles"]
    if action == "cancel":
        await cancel(
            client, plan, preserve_throttles=preserve_throttles, timeout_ms=flags["timeout"]
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
        await execute(client, plan, options)
    if flags["progress"]:
        await follow(partial(look, client, plan))
    if action == "verify" or flags["progress"]:
        await verify(client, plan, preserve_throttles=preserve_throttles)
    if action == "verify" and sys.stderr.isatty():
        show_once(await look(client, plan))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ReassignmentError(f"cannot read {path}: {e}") from e


if __name__ == "__main__":
    main(prog_name="kraftjbod-reassign-partitions")
