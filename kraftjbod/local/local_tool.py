"""WIRE. ``kraftjbod-local``: run a cluster on this machine, and print sample configuration.

``make up`` and ``make stop`` call this tool. One directory, by default ``kraftjbod-data``, contains
the cluster's data and the events of its daemons.

Exit codes: 0 success, 1 failure (``status``: a daemon does not serve), 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from kraftjbod.cli.terminal.command import echo_json, fail, json_option, parse_pairs, tool_group
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.local.cluster_process import FIRST_CLIENT_PORT, ClusterProcesses
from kraftjbod.local.cluster_report import cluster_document, show_cluster
from kraftjbod.local.cluster_security import ADMIN, CLIENT, SECURITIES
from kraftjbod.local.sample_config import ROLES, sample, sample_nodes, security_dir, write_samples
from kraftjbod.local.security_files import Node, write_security_files
from kraftjbod.local.up_and_down import (
    DEFAULT_BROKERS,
    DEFAULT_CONTROLLERS,
    DEFAULT_DIRS,
    MOST_BROKERS,
    MOST_CONTROLLERS,
    MOST_DIRS,
    claimed,
    daemon_states,
    grow,
    make_cluster,
    require_same_shape,
)

_DEFAULT_DATA: Final = Path("kraftjbod-data")
_LAST_FIRST_PORT: Final = 65_000

_data_option: Final = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=_DEFAULT_DATA,
    show_default=True,
    help="Directory of the cluster.",
)


@tool_group()
def main() -> None:
    """Start, show and stop a cluster on this machine."""
    # SIGTERM raises KeyboardInterrupt, so that an interrupted command stops its daemons.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@main.command("up")
@click.option(
    "--brokers",
    type=click.IntRange(1, MOST_BROKERS),
    help="Brokers of a new cluster, or how many a cluster that is there grows to.  "
    f"[default: {DEFAULT_BROKERS}]",
)
@click.option(
    "--dirs",
    type=click.IntRange(1, MOST_DIRS),
    help=f"Log directories of each.  [default: {DEFAULT_DIRS}]",
)
@click.option(
    "--controllers",
    type=click.IntRange(1, MOST_CONTROLLERS),
    help="Controllers of a new cluster: an odd number; three outlive the loss of one, 1 is enough "
    "to try things.  "
    f"[default: {DEFAULT_CONTROLLERS}]",
)
@click.option(
    "--port",
    type=click.IntRange(1024, _LAST_FIRST_PORT),
    help="Port of the first broker of a new cluster; each takes the next free one.  "
    f"[default: {FIRST_CLIENT_PORT}]",
)
@click.option(
    "--hosts",
    is_flag=True,
    help="Run each daemon of a new cluster in a separate network namespace; needs root.",
)
@click.option(
    "--security",
    type=click.Choice(SECURITIES),
    help="Security of a new cluster's listener for clients; the command prints the path of their "
    "settings.",
)
@click.option(
    "--config",
    "pairs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Configuration of a new cluster's daemons; may be repeated.",
)
@_data_option
@json_option
def up_command(
    brokers: int | None,
    dirs: int | None,
    controllers: int | None,
    port: int | None,
    hosts: bool,
    security: str | None,
    pairs: tuple[str, ...],
    data: Path,
    as_json: bool,
) -> None:
    """Start the cluster, or its missing daemons. Create the cluster first if it does not exist.

    With --brokers, a running or stopped cluster grows to that many brokers.
    """
    config = parse_pairs(pairs, "--config")
    asyncio.run(
        _up(
            data,
            brokers=brokers,
            dirs=dirs,
            controllers=controllers,
            port=port,
            hosts=hosts,
            security=security,
            config=config,
            as_json=as_json,
        )
    )


@main.command("status")
@_data_option
@json_option
def status_command(data: Path, as_json: bool) -> None:
    """Show the state of each daemon; exit code 1 if one of them does not serve."""
    asyncio.run(_status(data, as_json=as_json))


@main.command("down")
@_data_option
@json_option
def down_command(data: Path, as_json: bool) -> None:
    """Stop all running daemons; the data stays, and up starts them again."""
    asyncio.run(_down(data, as_json=as_json))


@main.command("samples")
@click.argument("role", type=click.Choice(ROLES), required=False)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write a file for each daemon into this directory instead.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, MOST_BROKERS),
    default=DEFAULT_BROKERS,
    show_default=True,
    help="With --out: number of brokers.",
)
@click.option(
    "--controllers",
    type=click.Choice(["1", "3", "5"]),
    default=str(DEFAULT_CONTROLLERS),
    show_default=True,
    help="With --out: number of controllers.",
)
@click.option(
    "--secured",
    is_flag=True,
    help="TLS between nodes, SASL_SSL for clients and an authorizer. With --out also write the "
    "keys, certificates and users into DIR/security.",
)
def samples_command(
    role: str | None, out: Path | None, brokers: int, controllers: str, secured: bool
) -> None:
    """Print a documented configuration file, or write those of a small cluster."""
    if (role is None) == (out is None):
        raise click.UsageError("either broker or controller is printed, or --out DIR is written")
    if role is not None:
        click.echo(sample(role, secured=secured), nl=False)
        return
    assert out is not None
    samples = write_samples(out, brokers=brokers, controllers=int(controllers), secured=secured)
    for path, is_new in samples.items():
        click.echo(f"{'wrote' if is_new else 'kept, it was there:'} {path}")
    if secured:
        nodes = sample_nodes(brokers=brokers, controllers=int(controllers))
        _write_security(security_dir(out), nodes, (ADMIN, CLIENT))


@main.command("certificates")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the authority, the nodes and the users.",
)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="ID=HOST,...",
    help="A broker and the host names and addresses that it advertises; may be repeated.",
)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="ID=HOST,...",
    help="The same for a controller.",
)
@click.option(
    "--user",
    "users",
    multiple=True,
    metavar="NAME",
    help="A user with a random password; may be repeated.",
)
def certificates_command(
    out: Path, brokers: tuple[str, ...], controllers: tuple[str, ...], users: tuple[str, ...]
) -> None:
    """Create a certificate authority, keys of nodes, and users. Existing files stay.

    The certificates fit the files of samples --secured.
    """
    nodes = [Node.parse("controller", text) for text in controllers]
    nodes += [Node.parse("broker", text) for text in brokers]
    _write_security(out, nodes, users)


def _write_security(out: Path, nodes: Sequence[Node], users: Sequence[str]) -> None:
    # Daemons of a package have a group of their own, which owns the directory of configurations.
    group = out.parent.stat().st_gid if os.geteuid() == 0 and out.parent.is_dir() else None
    for path in write_security_files(out, nodes=nodes, users=users, group=group):
        click.echo(f"wrote {path}")


async def _up(
    data: Path,
    *,
    brokers: int | None,
    dirs: int | None,
    controllers: int | None,
    port: int | None,
    hosts: bool,
    security: str | None,
    config: Mapping[str, str],
    as_json: bool,
) -> None:
    began_s = time.monotonic()
    added = 0
    with claimed(data):
        cluster = ClusterProcesses.load(data)
        is_new = cluster is None
        if cluster is None:
            cluster = make_cluster(
                data,
                brokers=brokers or DEFAULT_BROKERS,
                dirs=dirs or DEFAULT_DIRS,
                controllers=controllers or DEFAULT_CONTROLLERS,
                first_client_port=port or FIRST_CLIENT_PORT,
                config=config,
                hosts=hosts,
                security=security,
            )
        else:
            require_same_shape(cluster, brokers=brokers, dirs=dirs, controllers=controllers)
            _require_no_changes(cluster, port, config, hosts=hosts, security=security)
            added = grow(cluster, brokers or 0)
        started = await cluster.start()
    if as_json:
        document = cluster_document(cluster, await daemon_states(cluster))
        echo_json({"isNew": is_new, "added": added, "started": started, **document})
        return
    if is_new:
        first = (
            f"Made a cluster of {len(cluster.controllers)} controllers and {len(cluster.brokers)} "
            "brokers and started it"
        )
    elif added:
        first = f"The cluster grew by {added} to {len(cluster.brokers)} brokers"
    elif len(started) == len(cluster.daemons):
        first = "Started the stopped cluster with its data"
    else:
        first = f"Started {', '.join(started)}; the others ran" if started else "It is up already"
    click.echo(f"{first} ({time.monotonic() - began_s:.1f} s).")
    if is_new:
        click.echo(f"Its daemons run {cluster.privileges.description}.")
    show_cluster(Console(), cluster, await daemon_states(cluster))
    click.echo(f"  stop it with:       kraftjbod-local down{_same_data(data)}")


def _require_no_changes(
    cluster: ClusterProcesses,
    port: int | None,
    config: Mapping[str, str],
    *,
    hosts: bool,
    security: str | None,
) -> None:
    """Require that no option is given that applies to new clusters only.

    :raises ConfigError: such an option is given.
    """
    if hosts and not cluster.own_hosts:
        raise ConfigError(
            f"--hosts is for a new cluster, and the daemons in {cluster.run_dir} share this "
            "machine's network: make another one in another data directory"
        )
    present = None if cluster.security is None else cluster.security.security
    if security not in (None, present):
        raise ConfigError(
            f"--security is for a new cluster, and the one in {cluster.run_dir} has "
            f"{present or 'none'}: make another one in another data directory"
        )
    if port is not None or config:
        option = "--config" if config else "--port"
        raise ConfigError(
            f"{option} is for a new cluster, and there is one in {cluster.run_dir}: edit "
            f"{cluster.daemons[-1].files.config_path} and its like, and start it again"
        )


async def _status(data: Path, *, as_json: bool) -> None:
    cluster = ClusterProcesses.load(data)
    if cluster is None:
        raise StartupError(f"there is no cluster in {data}: kraftjbod-local up makes one")
    states = await daemon_states(cluster)
    if as_json:
        echo_json(cluster_document(cluster, states))
    else:
        show_cluster(Console(), cluster, states)
    sick = [state for state in states if state.state != "serving"]
    if sick:
        reasons = "; ".join(f"{state.daemon.files.name}: {state.reason}" for state in sick)
        hint = f" (kraftjbod-local up{_same_data(data)} starts what is missing)"
        fail(f"{reasons}" + hint * any(state.state == "stopped" for state in sick))


async def _down(data: Path, *, as_json: bool) -> None:
    stopped, killed = await _stop(data) if _exists(data) else ([], [])
    if as_json:
        echo_json({"stopped": stopped, "killed": killed})
    elif not stopped:
        click.echo("No cluster is running.")
    else:
        again = f"kraftjbod-local up{_same_data(data)}"
        click.echo(f"Stopped {', '.join(stopped)}; {again} starts it again with its data.")
    if killed:
        fail(f"had to be killed, for it did not stop when asked: {', '.join(killed)}")


async def _stop(data: Path) -> tuple[list[str], list[str]]:
    """Stop the cluster; return the names of daemons that ran, and of killed daemons."""
    with claimed(data):
        cluster = ClusterProcesses.load(data)
        if cluster is None:
            return [], []
        running = [daemon.files.name for daemon in cluster.daemons if daemon.is_running]
        killed = await cluster.stop()
        cluster.write_cluster_json()
        return running, killed


def _exists(data: Path) -> bool:
    """Return whether the data directory exists; claiming it would create it."""
    return data.exists()


def _same_data(data: Path) -> str:
    """Return the ``--data`` option that makes the next command use this cluster."""
    return "" if data == _DEFAULT_DATA else f" --data {data}"


if __name__ == "__main__":
    main(prog_name="kraftjbod-local")
