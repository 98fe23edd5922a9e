"""WIRE. ``kraftjbod-cluster``: a cluster's id, its brokers, and a broker that is gone for good.

Commands, flags, output lines and exit codes are those of Kafka's ``kafka-cluster.sh``, also against
a real Kafka.
"""

from __future__ import annotations

import asyncio

import click

from kraftjbod.cli.clients.cluster_admin import describe_cluster, unregister_broker
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    connection_options,
    tool_group,
)
from kraftjbod.core.errors import ErrorCode, OperatingError


@tool_group()
def main() -> None:
    """Describe a cluster, or forget one of its brokers."""


@main.command("cluster-id")
@answering
@connection_options
def cluster_id_command(answer: Answer, cluster: ClusterAddress) -> None:
    """Print the id of the cluster."""
    asyncio.run(_print_id(cluster, answer))


@main.command("unregister")
@answering
@connection_options
@click.option(
    "--id", "-i", "broker_id", required=True, type=click.IntRange(min=0), help="Of the broker."
)
def unregister_command(answer: Answer, cluster: ClusterAddress, broker_id: int) -> None:
    """Forget a broker that is stopped for good; move its replicas elsewhere before."""
    asyncio.run(_unregister(cluster, answer, broker_id))


@main.command("list-endpoints")
@answering
@connection_options
@click.option("--include-fenced-brokers", is_flag=True, help="Also those that are away.")
def list_endpoints_command(
    answer: Answer, cluster: ClusterAddress, include_fenced_brokers: bool
) -> None:
    """Print where the brokers are reached."""
    asyncio.run(_list_endpoints(cluster, answer, include_fenced=include_fenced_brokers))


async def _print_id(cluster: ClusterAddress, answer: Answer) -> None:
    async with cluster.connect() as client:
        found = await client.retry(lambda: describe_cluster(client))
    answer.say(f"Cluster ID: {found.cluster_id}", clusterId=found.cluster_id)


async def _unregister(cluster: ClusterAddress, answer: Answer, broker_id: int) -> None:
    async with cluster.connect() as client:
        try:
            await client.retry(lambda: unregister_broker(client, broker_id))
        except OperatingError as e:
            if e.code is ErrorCode.UNSUPPORTED_VERSION:
                raise OperatingError(
                    "The target cluster does not support the broker unregistration API."
                ) from e
            raise
    answer.say(f"Broker {broker_id} is no longer registered.", unregistered=broker_id)


async def _list_endpoints(cluster: ClusterAddress, answer: Answer, *, include_fenced: bool) -> None:
    async with cluster.connect() as client:
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
        where = {"id": broker.broker_id, "host": broker.host, "port": broker.port}
        answer.say(
            # Kafka's tool says of a broker without a rack what Java does.
            row(broker.broker_id, broker.host, broker.port, broker.rack or "null", state, "broker"),
            endpoints=[{**where, "rack": broker.rack, "state": state, "type": "broker"}],
        )


if __name__ == "__main__":
    main(prog_name="kraftjbod-cluster")
