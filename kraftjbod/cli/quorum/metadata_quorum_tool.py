"""WIRE. ``kraftjbod-metadata-quorum``: describes and changes the quorum of controllers.

Flags, output lines and exit codes are those of Kafka's ``kafka-metadata-quorum.sh``. With
``--bootstrap-server`` the tool works with Kafka too.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_admin import unregister_controller
from kraftjbod.cli.quorum.quorum_admin import (
    QuorumDescription,
    QuorumReplica,
    VoterToChange,
    add_voter,
    change_by_controllers,
    describe_quorum,
    describe_quorum_by_controllers,
    remove_voter,
    require_leader,
)
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    bootstrap_options,
    config_option,
    controller_dialer,
    read_properties,
    report,
    timeout_option,
    tool_group,
)
from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import InvalidUuidText, KraftJbodError
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.security_keys import TLS_PROTOCOLS
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.storage.dir_names import META_PROPERTIES
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import RealVfs

_LABEL_WIDTH: Final = 24
_COLUMNS: Final = (
    *("NodeId", "DirectoryId", "LogEndOffset", "Lag"),
    *("LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"),
)
#: Kafka's output for an unknown directory id.
_NO_DIRECTORY: Final = "AAAAAAAAAAAAAAAAAAAAAA"


class QuorumCommandError(KraftJbodError):
    """The command is malformed or cannot be performed; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quorum:
    """The addresses of brokers or of controllers, and the timeout of requests."""

    brokers: str | None
    controllers: str | None
    command_config: str | None
    timeout_ms: int
    dialer: Dialer | None = None
    """Opens connections to controllers. If None: by ``command_config``."""

    async def change(self, voter: VoterToChange, *, unregisters: bool = False) -> None:
        """Add the voter if it has endpoints, else remove it. The request is not repeated.

        :param unregisters: whether to unregister the removed controller.
        :raises OperatingError: the request is refused, or its response was lost.
        """
        if self.controllers is not None:
            await change_by_controllers(
                self.controllers,
                voter,
                unregisters=unregisters,
                timeout_ms=self.timeout_ms,
                report=report,
                dialer=self.dialer or controller_dialer(self.command_config),
            )
            return
        async with self._brokers().connect() as client:
            # Not retried: after a lost answer the operator lists the voters.
            await (add_voter if voter.endpoints else remove_voter)(client, voter)
            if unregisters:
                await client.retry(lambda: unregister_controller(client, voter.node_id))

    async def describe(self) -> QuorumDescription:
        if self.controllers is not None:
            return await describe_quorum_by_controllers(
                self.controllers,
                timeout_ms=self.timeout_ms,
                report=report,
                dialer=self.dialer or controller_dialer(self.command_config),
            )
        async with self._brokers().connect() as client:
            return await client.retry(lambda: describe_quorum(client))

    def _brokers(self) -> ClusterAddress:
        assert self.brokers is not None, "one of them is given"
        return ClusterAddress(
            bootstrap_server=self.brokers,
            command_config=self.command_config,
            timeout_ms=self.timeout_ms,
        )


@tool_group()
@bootstrap_options("Addresses of controllers instead of brokers.")
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
    context.obj = Quorum(
        brokers=bootstrap_server,
        controllers=bootstrap_controller,
        command_config=command_config,
        timeout_ms=give_up_ms,
    )


# --- describe ------------------------------------------------------------------------------------


@main.command("describe")
@click.option(
    "--status", is_flag=True, help="Show the leader, the voters, and the largest lag of a voter."
)
@click.option("--replication", is_flag=True, help="Show the progress of each replica.")
@click.option(
    "--human-readable", is_flag=True, help="With --replication: print times as durations."
)
@answering
@click.pass_obj
def describe_command(
    quorum: Quorum, answer: Answer, status: bool, replication: bool, human_readable: bool
) -> None:
    """Report the state of the quorum."""
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
        _print_status(answer, found)
    else:
        _print_replication(answer, found, now_ms=_now_ms() if human_readable else None)


def _print_status(answer: Answer, found: QuorumDescription) -> None:
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


def _print_replication(answer: Answer, found: QuorumDescription, *, now_ms: int | None) -> None:
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
    """Return the lines of a table as Kafka's tools format it: padded cells, each followed by
    a tab."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- changes -------------------------------------------------------------------------------------

_DRY_RUN_OPTION: Final = click.option(
    "--dry-run", is_flag=True, help="Print the change without making it."
)


@main.command("add-controller")
@_DRY_RUN_OPTION
@answering
@click.pass_obj
def add_command(quorum: Quorum, answer: Answer, dry_run: bool) -> None:
    """Make an observer a voter; --command-config is its own file."""
    if quorum.command_config is None:
        raise QuorumCommandError(
            "You must supply the configuration file of the controller you are adding when using "
            "add-controller."
        )
    voter = _controller_of(quorum.command_config)
    # The file is a controller's. It may have the keys of a client too, for --bootstrap-server.
    asked = replace(quorum, dialer=_dialer_of(quorum.command_config))
    if not dry_run:
        asyncio.run(asked.change(voter))
    what = "DRY RUN of adding" if dry_run else "Added"
    endpoints = [endpoint.text for endpoint in voter.endpoints]
    answer.say(
        f"{what} controller {voter.node_id} with directory id {voter.directory_id} and endpoints: "
        f"{', '.join(endpoints)}",
        added={
            "id": voter.node_id,
            "directoryId": str(voter.directory_id),
            "endpoints": endpoints,
        },
        dryRun=dry_run,
    )


@main.command("remove-controller")
@click.option("--controller-id", "-i", type=int, required=True, help="Node id of the controller.")
@click.option(
    "--controller-directory-id",
    "-d",
    required=True,
    help="Id of the controller's metadata directory.",
)
@click.option("--unregister", is_flag=True, help="Also remove the controller's registration.")
@_DRY_RUN_OPTION
@answering
@click.pass_obj
def remove_command(
    quorum: Quorum,
    answer: Answer,
    controller_id: int,
    controller_directory_id: str,
    unregister: bool,
    dry_run: bool,
) -> None:
    """Remove a controller from the voters, whether it runs or not."""
    if controller_id < 0:
        raise QuorumCommandError(f"Invalid negative --controller-id: {controller_id}")
    try:
        directory_id = DirectoryId.parse(controller_directory_id)
    except InvalidUuidText as e:
        raise QuorumCommandError(f"Failed to parse --controller-directory-id: {e}") from e
    if not dry_run:
        voter = VoterToChange(node_id=controller_id, directory_id=directory_id)
        asyncio.run(quorum.change(voter, unregisters=unregister))
    what = "DRY RUN of removing" if dry_run else "Removed"
    answer.say(
        f"{what} KRaft controller {controller_id} with directory id {directory_id}",
        removed={"id": controller_id, "directoryId": str(directory_id)},
        dryRun=dry_run,
    )
    if unregister:
        what = "DRY RUN of unregistering" if dry_run else "Unregistered"
        answer.say(f"{what} KRaft controller {controller_id}", unregistered=controller_id)


def _dialer_of(path: str) -> Dialer:
    """Return a dialer with the certificate and login of the controller to which a file belongs."""
    config = _controller_config(path)
    name = config.controller_listener
    dialer = PLAIN
    if config.protocol_of(name) in TLS_PROTOCOLS:
        from kraftjbod.cli.clients.client_settings import tls_dialer

        dialer = tls_dialer(config.of_listener(name), path)
    login = config.login_of(name, source=path)
    if login is None:
        return dialer
    return dialer.with_credential(PlainCredential(login.user, login.password))


def _controller_config(path: str) -> ControllerConfig:
    """Return the configuration in the controller's file ``path``, without the keys of clients."""
    from kraftjbod.cli.clients.client_settings import ClientSettings

    of_clients = ClientSettings.keys() - ControllerConfig.keys()
    given = read_properties(path)
    values = {key: value for key, value in given.items() if key not in of_clients}
    return ControllerConfig.from_properties(values, source=path, base_dir=os.getcwd())


def _controller_of(path: str) -> VoterToChange:
    """Return the controller to which a configuration file belongs, as a voter to add.

    :raises KraftJbodError: it is no controller's file, or its metadata directory is not formatted.
    """
    config = _controller_config(path)
    found = read_meta_properties(RealVfs(), f"{config.metadata_dir}/{META_PROPERTIES}")
    if found is None or found.directory_id is None:
        raise QuorumCommandError(
            f"{config.metadata_dir} has no {META_PROPERTIES} with a directory id: format it first"
        )
    return VoterToChange(
        node_id=config.node_id,
        directory_id=found.directory_id,
        endpoints=(config.advertised_endpoint,),
    )


if __name__ == "__main__":
    main(prog_name="kraftjbod-metadata-quorum")
