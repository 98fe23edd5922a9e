"""WIRE. ``kraftjbod-drain``: empties a log directory or a broker, so that it can be retired.

The tool cordons the source, moves its replicas to the directories with the most free space, and
reports when the source may be removed. The same command resumes an interrupted drain. ``--cancel``
undoes it. A lost broker is drained without a cordon, which needs a live broker.

Exit codes: 0 it is empty (or, with ``--dry-run``, everything fits); 1 an error; 2 not everything
fits elsewhere, and nothing was moved; 130 interrupted, while moves continue.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.log_dir_changes import broker_path
from kraftjbod.cli.drain.drain_plan import DrainPlan, Misfit, Move
from kraftjbod.cli.drain.drain_run import DoesNotFitError, Drain, DrainOptions
from kraftjbod.cli.terminal.command import (
    PATIENCE_MS,
    ClusterAddress,
    connection_options,
    format_option,
    json_option,
    report,
    tool,
)
from kraftjbod.core.text.size_text import size_text

_DOES_NOT_FIT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The parsed options of one ``kraftjbod-drain`` command."""

    broker_id: int
    directory: str | None
    options: DrainOptions
    dry_run: bool
    cancel: bool
    as_json: bool


@tool(
    epilog="Exit codes: 0 it is empty, or with --dry-run everything fits; 1 something went wrong; "
    "2 not everything fits elsewhere, and nothing was moved (or wrong usage); 130 interrupted, and "
    "moves continue.",
)
@connection_options
@click.option("--dir", "directory", metavar="BROKER:PATH|ID", help="Empty this log directory.")
@click.option(
    "--broker", type=click.IntRange(min=0), metavar="ID", help="Empty this broker, alive or lost."
)
@click.option(
    "--across-brokers",
    is_flag=True,
    help="Move replicas to other brokers if they do not fit on the broker's other directories.",
)
@click.option(
    "--throttle",
    type=click.IntRange(min=1),
    metavar="B/S",
    help="Limit per broker; removed at the end.",
)
@click.option("--dry-run", is_flag=True, help="Show the moves without starting them.")
@click.option("--cancel", is_flag=True, help="Cancel the moves in progress, and lift the cordon.")
@format_option("text", "json", help="Lines for people, or one JSON document at the end.")
@json_option
def main(
    cluster: ClusterAddress,
    directory: str | None,
    broker: int | None,
    across_brokers: bool,
    throttle: int | None,
    dry_run: bool,
    cancel: bool,
    style: str,
    as_json: bool,
) -> None:
    """Empty a log directory or a broker, and say when it may be pulled or stopped."""
    if (directory is None) == (broker is None):
        raise click.UsageError("give exactly one of --dir, --broker")
    if cancel and (dry_run or throttle is not None):
        raise click.UsageError("--cancel excludes the other options")
    if broker is not None and across_brokers:
        raise click.UsageError("--across-brokers belongs to --dir")
    path = None
    if directory is not None:
        broker, path = parse_directory(directory)
    assert broker is not None
    order = Order(
        broker_id=broker,
        directory=path,
        options=DrainOptions(throttle=throttle, across_brokers=across_brokers),
        dry_run=dry_run,
        cancel=cancel,
        as_json=as_json or style == "json",
    )
    asyncio.run(_perform(cluster, order))


def parse_directory(text: str) -> tuple[int, str]:
    """Parse ``1:/disk2`` or ``1:<directory id>`` to a broker id and a path or directory id.

    :raises click.BadParameter: the text has another form.
    """
    broker, colon, directory = text.partition(":")
    if not (colon and directory and broker.isascii() and broker.isdigit()):
        raise click.BadParameter(
            f"{text!r} is not BROKER:PATH or BROKER:ID, such as 1:/disk2", param_hint="--dir"
        )
    # A directory id contains no slash.
    return int(broker), broker_path(directory, "--dir") if "/" in directory else directory


async def _perform(cluster: ClusterAddress, order: Order) -> None:
    async with cluster.connect(patience_ms=PATIENCE_MS) as client:
        try:
            await _drain(client, order)
        except asyncio.CancelledError:
            click.echo(
                "Interrupted. Moves in progress continue, and the cordon stays. Run the same "
                "command again to resume, or with --cancel to cancel the moves.",
                err=True,
            )
            raise


async def _drain(client: ClusterClient, order: Order) -> None:
    drain = await Drain.find(
        client,
        order.broker_id,
        order.directory,
        order.options,
        report=report,
    )
    if order.cancel:
        count = await drain.cancel()
        _say(order, drain, "cancelled", f"Cancelled {_count(count, 'move')} out of {drain.source}.")
        return
    if order.dry_run:
        plan = await drain.plan()
        _report_plan(order, drain, plan)
        if plan.misfits:
            sys.exit(_DOES_NOT_FIT)
        return
    try:
        count = await drain.run_drain()
    except DoesNotFitError as e:
        _report_plan(order, drain, e.plan)
        sys.exit(_DOES_NOT_FIT)
    _say(order, drain, "drained", await _farewell(drain, count), moved=count)


# --- printing ------------------------------------------------------------------------------------


async def _farewell(drain: Drain, count: int) -> str:
    """Return the final message with the next step."""
    source = drain.source
    broker, path = source.broker_id, source.path
    done = f"Moved {_count(count, 'replica')}."
    if path is None and not drain.is_alive:
        return (
            f"{done} No partition has a replica on broker {broker} any more, and it is not alive.\n"
            "Next: if it is lost permanently, remove its registration with\n"
            f"  kraftjbod-cluster unregister --id {broker}"
        )
    if path is None:
        return (
            f"{done} Broker {broker} has no replicas and leads nothing: it is safe to stop.\n"
            f"Next: stop it. Its cordon stays; should it serve again, lift that with\n"
            f"  kraftjbod-configs --alter --entity-type brokers --entity-name {broker} "
            "--delete-config cordoned.log.dirs"
        )
    if await drain.has_metadata():
        return (
            f"{done} {path} of broker {broker} has no replicas, but the broker's own metadata: it "
            "is not safe to pull while the broker runs.\n"
            f"Next: stop broker {broker}, give it another metadata.log.dir, and take {path} out of "
            "log.dirs."
        )
    return (
        f"{done} {path} of broker {broker} is empty: it is safe to pull.\n"
        "Next: release its id with\n"
        f"  kraftjbod-log-dirs --forget {broker}:{path}\n"
        "then pull the disk, and take the directory out of log.dirs in the broker's file."
    )


def _report_plan(order: Order, drain: Drain, plan: DrainPlan) -> None:
    state = "refused" if plan.misfits else "planned"
    lines = [move_line(move) for move in plan.moves] if order.dry_run else []
    if plan.misfits:
        lines.append(f"{drain.source} cannot be drained; there is no place for")
        lines += [misfit_line(misfit) for misfit in plan.misfits]
        if not order.dry_run:
            lines.append("Nothing of this plan was moved.")
    else:
        what = f"{_count(len(plan.moves), 'replica')}, {size_text(plan.size_bytes)}"
        lines.append(f"To be moved: {what}.")
    _say(order, drain, state, "\n".join(lines), plan=plan)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def move_line(move: Move) -> str:
    """Return a line about a move: the replica, its source and its target."""
    replica = move.replica
    source = f"{replica.broker_id}:{move.source}" if move.source else str(replica.broker_id)
    line = f"{replica.topic_partition} ({size_text(move.size_bytes)}) {source} -> {move.target}"
    if move.is_under_way:
        line += ", under way"
    return line + (", in a rack with another replica" if move.shares_rack else "")


def misfit_line(misfit: Misfit) -> str:
    """Return a line about a replica that does not fit, with the largest free space for it."""
    best = "no open directory may take it"
    if misfit.best_free_bytes is not None:
        best = f"{size_text(max(0, misfit.best_free_bytes))} free at best"
    return f"  {misfit.replica.topic_partition}: {size_text(misfit.size_bytes)}, {best}"


def _say(
    order: Order,
    drain: Drain,
    state: str,
    text: str,
    *,
    plan: DrainPlan | None = None,
    moved: int | None = None,
) -> None:
    if not order.as_json:
        click.echo(text)
        return
    document: dict[str, Any] = {
        "version": 1,
        "broker": drain.source.broker_id,
        "logDir": drain.source.path,
        "state": state,
    }
    if moved is not None:
        document["moved"] = moved
    if plan is not None:
        document["moves"] = [_move_json(move) for move in plan.moves]
        document["doesNotFit"] = [_misfit_json(misfit) for misfit in plan.misfits]
    click.echo(json.dumps(document))


def _move_json(move: Move) -> dict[str, Any]:
    return {
        "partition": str(move.replica.topic_partition),
        "size": move.size_bytes,
        "from": {"broker": move.replica.broker_id, "logDir": move.source or None},
        "to": {"broker": move.target.broker_id, "logDir": move.target.path},
        "isUnderWay": move.is_under_way,
        "sharesRack": move.shares_rack,
    }


def _misfit_json(misfit: Misfit) -> dict[str, Any]:
    return {
        "partition": str(misfit.replica.topic_partition),
        "size": misfit.size_bytes,
        "bestFree": misfit.best_free_bytes,
    }


if __name__ == "__main__":
    main(prog_name="kraftjbod-drain")
