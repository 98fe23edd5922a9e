"""WIRE. ``kraftjbod-broker-api-versions``: prints the APIs that each broker supports, with
versions.

Flags and output are those of Kafka's tool. *usable* is the version that these tools would use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from kraftjbod.cli.clients.cluster_client import BrokerNode, ClusterClient
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    connection_options,
    tool,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.version import package_version
from kraftjbod.protocol.kafka_codec import OWN_SOFTWARE_NAME, SUPPORTED, ApiKey, api_name
from kraftjbod.protocol.messages import ApiVersionsRequest

Versions = Mapping[int, tuple[int, int]]
_KNOWN: Final = frozenset(ApiKey)


@tool()
@answering
@connection_options
def main(answer: Answer, cluster: ClusterAddress) -> None:
    """Print which requests each broker serves, in which versions."""
    asyncio.run(_print_all(cluster, answer))


async def _print_all(cluster: ClusterAddress, answer: Answer) -> None:
    async with cluster.connect() as client:
        answer.say(None, brokers=[])
        for _, broker in sorted(client.metadata.brokers.items()):
            where = {"id": broker.node_id, "host": broker.host, "port": broker.port}
            try:
                versions = await _versions(client, broker.node_id)
            except OperatingError as e:
                answer.say(f"{_named(broker)} -> ERROR: {e}", brokers=[{**where, "error": str(e)}])
                continue
            apis = [
                {"key": key, "name": _name(key), "min": low, "max": high}
                for key, (low, high) in sorted(versions.items())
            ]
            answer.say(
                f"{_named(broker)} -> {versions_text(versions)}", brokers=[{**where, "apis": apis}]
            )


async def _versions(client: ClusterClient, broker_id: int) -> Versions:
    request = ApiVersionsRequest(
        client_software_name=OWN_SOFTWARE_NAME, client_software_version=package_version()
    )
    response = await client.request(broker_id, request)
    if response.error_code != ErrorCode.NONE:
        raise OperatingError(ErrorCode(response.error_code).name)
    return {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def _named(broker: BrokerNode) -> str:
    """Return a broker in the format of Kafka's tool."""
    rack = "null" if broker.rack is None else broker.rack
    return f"{broker.host}:{broker.port} (id: {broker.node_id} rack: {rack} isFenced: false)"


def _name(key: int) -> str:
    return api_name(key) if key in _KNOWN else "UNKNOWN"


def versions_text(versions: Versions) -> str:
    """Return the output for one broker: a line per API, including unsupported APIs."""
    lines = []
    for key in sorted({*versions, *SUPPORTED}):
        head = f"{_name(key)}({int(key)}): "
        if key not in versions:
            lines.append(f"{head}UNSUPPORTED")
            continue
        low, high = versions[key]
        range_text = str(low) if low == high else f"{low} to {high}"
        lines.append(head + range_text + _usable(key, low, high))
    return "(\n\t" + ",\n\t".join(lines) + "\n)"


def _usable(key: int, low: int, high: int) -> str:
    if key not in SUPPORTED:
        return ""
    our_low, our_high = SUPPORTED[key]
    if our_high < low:
        return " [unusable: node too new]"
    if high < our_low:
        return " [unusable: node too old]"
    return f" [usable: {min(our_high, high)}]"


if __name__ == "__main__":
    main(prog_name="kraftjbod-broker-api-versions")
