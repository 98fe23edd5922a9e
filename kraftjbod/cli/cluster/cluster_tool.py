"""WIRE. ``kraftjbod-cluster``: shows a cluster's id, brokers or controllers, or unregisters a node.

Commands, flags, output and exit codes are those of Kafka's ``kafka-cluster.sh``, and the tool works
with Kafka's brokers too. ``--bootstrap-controller`` sends requests to kraftjbod's controllers.
``unregister`` refuses a broker that has replicas unless ``--force`` is given. Kafka's tool does not
refuse it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import click

from kraftjbod.cli.clients.cluster_admin import (
    describe_cluster,
    partitions_on,
    unregister_broker,
    unregister_controller,
)
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    ControllerAddress,
    answering,
    either_options,
    tool_group,
)
from kraftjbod.core.errors import ErrorCode, OperatingError

Where = ClusterAddress | ControllerAddress

_MAX_SHOWN: Final = 5


@tool_group()
def main() -> None:
    """Describe a cluster, or forget one of its brokers or controllers."""


@main.command("cluster-id")
@answering
@either_options
def cluster_id_command(answer: Answer, where: Where) -> None:
    """Print the id of the cluster."""
    asyncio.run(_print_id(where, answer))


@main.command("unregister")
@answering
@either_options
@click.option(
    "--id", "-i", "broker_id", required=True, type=click.IntRange(min=0), help="Id of the broker."
)
@click.option(
    "--force",
    is_flag=True,
    help="Unregister the broker although replicas are assigned to it; they stay assigned.",
)
def unregister_command(answer: Answer, where: Where, broker_id: int, force: bool) -> None:
    """Forget a permanently stopped broker, once kraftjbod-drain has moved its replicas."""
    asyncio.run(_unregister(where, answer, broker_id, force=force))


@main.command("list-endpoints")
@answering
@either_options
@click.option(
    "--include-fenced-brokers", is_flag=True, help="Include brokers that are not running."
)
def list_endpoints_command(answer: Answer, where: Where, include_fenced_brokers: bool) -> None:
    """Print the endpoints of the brokers, or of the controllers."""
    if isinstance(where, ControllerAddress):
        if include_fenced_brokers:
            raise click.UsageError(
                "The option --include-fenced-brokers is only supported with --bootstrap-server "
                "option"
            )
        asyncio.run(_list_controllers(where, answer))
        return
    asyncio.run(_list_endpoints(where, answer, include_fenced=include_fenced_brokers))


@main.command("unregister-controller")
@answering
@either_options
@click.option(
    "--id",
    "-i",
    "controller_id",
    required=True,
    type=click.IntRange(min=0),
    help="Id of the controller.",
)
def unregister_controller_command(answer: Answer, where: Where, controller_id: int) -> None:
    """Forget a permanently stopped controller that is no longer a voter."""
    asyncio.run(_unregister_controller(where, answer, controller_id))


async def _print_id(where: Where, answer: Answer) -> None:
    if isinstance(where, ControllerAddress):
        from kraftjbod.cli.clients import controller_admin

        async with where.connect() as controllers:
            cluster_id = (await controller_admin.describe_cluster(controllers)).cluster_id
    else:
        async with where.connect() as client:
            cluster_id = (await client.retry(lambda: describe_cluster(client))).cluster_id
    answer.say(f"Cluster ID: {cluster_id}", clusterId=cluster_id)


async def _unregister(where: Where, answer: Answer, broker_id: int, *, force: bool) -> None:
    if isinstance(where, ControllerAddress):
        from kraftjbod.cli.clients import controller_admin

        if not force:
            raise OperatingError(
                f"controllers do not say which replicas broker {broker_id} still has, and those "
                "would stay assigned to it: ask with --bootstrap-server, or give --force"
            )
        async with where.connect() as controllers:
            await controller_admin.unregister_broker(controllers, broker_id)
    else:
        await _unregister_by_brokers(where, broker_id, force=force)
    answer.say(f"Broker {broker_id} is no longer registered.", unregistered=broker_id)


async def _unregister_controller(where: Where, answer: Answer, controller_id: int) -> None:
    if isinstance(where, ControllerAddress):
        from kraftjbod.cli.clients import controller_admin

        async with where.connect() as controllers:
            await controller_admin.unregister_controller(controllers, controller_id)
    else:
        async with where.connect() as client:
            await client.retry(lambda: unregister_controller(client, controller_id))
    answer.say(f"Controller {controller_id} is no longer registered.", unregistered=controller_id)


async def _unregister_by_brokers(where: ClusterAddress, broker_id: int, *, force: bool) -> None:
    async with where.connect() as client:
        held = partitions_on(broker_id, await client.retry(client.refresh_metadata))
        if held and not force:
            shown = ", ".join(map(str, held[:_MAX_SHOWN])) + ", ..." * (len(held) > _MAX_SHOWN)
            raise OperatingError(
                f"broker {broker_id} still has {len(held)} replicas, which would stay assigned to "
                f"it ({shown}): move them first with kraftjbod-drain --broker {broker_id}, which "
                "works for a lost broker too, or give --force"
            )
        try:
            await client.retry(lambda: unregister_broker(client, broker_id))
        except OperatingError as e:
            if e.code is ErrorCode.UNSUPPORTED_VERSION:
                raise OperatingError(
                    "The target cluster does not support the broker unregistration API."
                ) from e
            raise


async def _list_controllers(where: ControllerAddress, answer: Answer) -> None:
    from kraftjbod.cli.clients import controller_admin

    async with where.connect() as controllers:
        found = (await controller_admin.describe_cluster(controllers)).controllers
    listed = [(each, listener) for each in found for listener in each.listeners[:1]]
    host_width = max((len(listener.host) for _, listener in listed), default=100)

    def row(node: object, host: str, port: object, rack: str, kind: str) -> str:
        return f"{node!s:<10} {host:<{host_width}} {port!s:<10} {rack:<10} {kind:<15}"

    answer.say(row("ID", "HOST", "PORT", "RACK", "ENDPOINT_TYPE"), endpoints=[])
    for each, listener in listed:
        incarnation = each.incarnation_id
        answer.say(
            row(each.controller_id, listener.host, listener.port, "null", "controller"),
            endpoints=[
                {
                    **{"id": each.controller_id, "host": listener.host, "port": listener.port},
                    **{"rack": None, "type": "controller", "isVoter": each.is_voter},
                    "incarnationId": None if incarnation is None else str(incarnation),
                    "version": each.software_version or None,
                }
            ],
        )


async def _list_endpoints(where: ClusterAddress, answer: Answer, *, include_fenced: bool) -> None:
    async with where.connect() as client:
        found = await client.retry(lambda: describe_cluster(client, include_fenced=include_fenced))
    brokers = found.brokers
    host_width = max((len(broker.host) for broker in brokers), default=100)
    rack_width = max((len(broker.rack) for broker in brokers if broker.rack), default=10)

    def row(node: object, host: str, port: object, rack: str, state: str, kind: str) -> str:
        where = f"{node!s:<10} {host:<{host_width}} {port!s:<10} {rack:<{rack_width}}"
        return f"{where} {state:<10} {kind:<15}"

    answer.say(row("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"), endpoints=[])
    for broker in brokers:
        state = "fenced" if broker.is_fenced else "unfenced"
        reached = {"id": broker.broker_id, "host": broker.host, "port": broker.port}
        answer.say(
            # Kafka's tool prints Java's "null" for a missing rack.
            row(broker.broker_id, broker.host, broker.port, broker.rack or "null", state, "broker"),
            endpoints=[{**reached, "rack": broker.rack, "state": state, "type": "broker"}],
        )


if __name__ == "__main__":
    main(prog_name="kraftjbod-cluster")
