"""WIRE. ``kraftjbod-health``: checks whether one daemon serves, for health checks and operators.

* A broker serves if it responds, is registered, and is not fenced according to its own metadata.
* A controller serves if it is active and has committed all its decisions, or if it follows the
  active controller.
* A directory that is not online is reported without effect on the result, because a dead disk is no
  reason to restart the broker.

The tool checks one daemon, without a retry. Exit codes: 0: it serves; 1: it does not, or does not
respond in time; 2: wrong usage.

A broker that does not report its id, such as Kafka's, cannot be checked for fencing. It serves if
it responds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_admin import describe_fencing
from kraftjbod.cli.clients.cluster_client import parse_bootstrap
from kraftjbod.cli.clients.first_contact import WrongPortError, is_controller, refuse_brokers
from kraftjbod.cli.clients.replica_admin import LogDirDescription, describe_own_log_dirs
from kraftjbod.cli.terminal.command import (
    config_option,
    controller_dialer,
    fail,
    json_option,
    make_client,
    require_one_address,
    timeout_option,
    tool,
)
from kraftjbod.core.errors import (
    ConfigError,
    ConnectionLostError,
    ErrorCode,
    KraftJbodError,
    OperatingError,
)

_ONLINE: Final = "online"
_OFFLINE: Final = "offline"
#: Leader id of a controller that knows no leader.
_NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The result of a health check of one daemon. ``reason`` is None if the daemon serves, else why
    not.

    ``log_dirs`` has the state by path; None for a controller or without a response. ``broker_id``
    is None for a controller, and for a broker that does not report it.
    """

    who: str
    reason: str | None = None
    broker_id: int | None = None
    log_dirs: Mapping[str, str] | None = None

    def text(self) -> str:
        """Return a line that the daemon serves, and a line for each directory that is not online.

        Only for a daemon that serves.
        """
        if self.log_dirs is None:
            return f"{self.who} serves"
        sick = {path: state for path, state in self.log_dirs.items() if state != _ONLINE}
        total = len(self.log_dirs)
        first = f"{self.who} serves, {total - len(sick)} of {total} log directories are online"
        return "\n".join([first, *(f"{path} is {state}" for path, state in sick.items())])

    def document(self) -> str:
        """Return the result as a JSON document."""
        document: dict[str, Any] = {"serves": self.reason is None, "reason": self.reason}
        if self.log_dirs is not None:
            document["brokerId"] = self.broker_id
            document["logDirs"] = [{"path": p, "state": s} for p, s in self.log_dirs.items()]
        return json.dumps(document, separators=(",", ":"))


@tool()
@click.option("--bootstrap-server", metavar="HOST:PORT", help="Address of the broker to check.")
@click.option(
    "--bootstrap-controller",
    "--controller",
    metavar="HOST:PORT",
    help="Address of the controller to check.",
)
@config_option
@timeout_option
@json_option
def main(
    bootstrap_server: str | None,
    bootstrap_controller: str | None,
    command_config: str | None,
    give_up_ms: int,
    as_json: bool,
) -> None:
    """Report by exit code 0 or 1 whether one broker or controller serves."""
    require_one_address(bootstrap_server, bootstrap_controller)
    address = bootstrap_server if bootstrap_server is not None else bootstrap_controller
    assert address is not None
    try:
        several = len(parse_bootstrap(address)) > 1
    except ConfigError as e:
        raise click.UsageError(f"{address!r} is no daemon: write HOST:PORT") from e
    if several or ":" not in address:
        raise click.UsageError(f"{address!r} is not one daemon: write HOST:PORT")
    is_broker = bootstrap_server is not None
    asyncio.run(_check(address, give_up_ms, command_config, is_broker=is_broker, as_json=as_json))


async def _check(
    address: str, timeout_ms: int, command_config: str | None, *, is_broker: bool, as_json: bool
) -> None:
    health = await examine(address, timeout_ms, is_broker=is_broker, command_config=command_config)
    if as_json:
        click.echo(health.document())
    elif health.reason is None:
        click.echo(health.text())
    if health.reason is not None:
        fail(f"{health.who} does not serve: {health.reason}")


async def examine(
    address: str, timeout_ms: int, *, is_broker: bool, command_config: str | None = None
) -> Health:
    """Check the daemon at ``address``, ``HOST:PORT``. An error becomes the ``reason`` of the
    result.

    :param command_config: path of a file with client settings, or None.
    """
    who = f"the {'broker' if is_broker else 'controller'} at {address}"
    ask = _ask_broker if is_broker else _ask_controller
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await ask(address, who, timeout_ms, command_config)
    except TimeoutError:
        return Health(who=who, reason=f"no answer within {timeout_ms} ms")
    except ConnectionLostError as e:
        return Health(
            who=who, reason=await _hint_at_other_daemon(address, is_broker=is_broker) or str(e)
        )
    except KraftJbodError as e:
        return Health(who=who, reason=str(e))


async def _hint_at_other_daemon(address: str, *, is_broker: bool) -> str | None:
    """Return a hint if a daemon of the other kind listens at the address; else None."""
    if is_broker:
        is_other = await is_controller(*parse_bootstrap(address)[0])
        return "it is a controller: give it as --bootstrap-controller" if is_other else None
    try:
        await refuse_brokers(address)
    except WrongPortError:
        return "it is a broker: give it as --bootstrap-server"
    return None


async def _ask_broker(
    address: str, who: str, timeout_ms: int, command_config: str | None
) -> Health:
    # This client knows no other brokers, so the one at the address answers.
    async with make_client(address, command_config, timeout_ms=timeout_ms) as client:
        broker_id, described = await describe_own_log_dirs(client)
        log_dirs = {log_dir.path: _state(log_dir) for log_dir in described}
        if broker_id is None:
            return Health(who=who, log_dirs=log_dirs)
        is_fenced = (await describe_fencing(client)).get(broker_id)
    reason = {None: "it is not registered", True: "it is fenced", False: None}[is_fenced]
    who = f"broker {broker_id} at {address}"
    return Health(who=who, reason=reason, broker_id=broker_id, log_dirs=log_dirs)


def _state(log_dir: LogDirDescription) -> str:
    if log_dir.state is not None:
        return log_dir.state
    return _ONLINE if log_dir.error_code == ErrorCode.NONE else _OFFLINE


async def _ask_controller(
    address: str, who: str, timeout_ms: int, command_config: str | None
) -> Health:
    # Importing the RPC's messages takes a tenth of a second, and brokers do not need them.
    from kraftjbod.cli.clients.controller_client import ControllerClient
    from kraftjbod.protocol.rpc_config_messages import (
        ListPartitionReassignmentsRequestRpc,
    )
    from kraftjbod.protocol.rpc_quorum_messages import DescribeQuorumRequestRpc

    dialer = controller_dialer(command_config)
    async with ControllerClient(address, timeout_ms=timeout_ms, dialer=dialer) as client:
        # An empty request, which only the active controller answers, and only once all its earlier
        # decisions are committed.
        try:
            await client.call(ListPartitionReassignmentsRequestRpc(partitions={}))
        except OperatingError as e:
            if e.code is not ErrorCode.NOT_CONTROLLER:
                raise
            quorum = await client.call(DescribeQuorumRequestRpc(of_any=True))
            if quorum.leader_id in (_NOBODY, quorum.node_id):
                raise
            if quorum.refusal:
                why = f"the active one, {quorum.leader_id}, refuses it: {quorum.refusal}"
                return Health(who=who, reason=why)
    return Health(who=who)


if __name__ == "__main__":
    main(prog_name="kraftjbod-health")
