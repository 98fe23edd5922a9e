"""Messages of a tool if no broker or controller, or one of the wrong kind, is at the given
address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from kraftjbod.cli import configs_tool, topics_tool
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.first_contact import reach
from kraftjbod.core.errors import NotControllerError
from kraftjbod.protocol.rpc_config_messages import (
    ListPartitionReassignmentsResponseRpc,
)
from kraftjbod.protocol.rpc_messages import (
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.scripted_controller import ScriptedController, serving
from tests.unit.cli.mini_broker import invoke, mini_broker

LIST = ("--list", "--timeout", "0.3")


@pytest.fixture
def free_port() -> Iterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_tool_without_broker_reports_the_attempt_and_fails_after_timeout(
    free_port: int,
) -> None:
    address = f"127.0.0.1:{free_port}"
    done = await invoke(topics_tool.main, "--bootstrap-server", address, *LIST)
    trying, error = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert trying.startswith(f"trying {address} for 0.3 s: cannot connect to {address}")
    assert error.startswith(f"error: no broker answered at {address} within 0.3 s: cannot connect")


async def test_tool_fails_after_timeout_when_the_server_never_answers() -> None:
    """The kernel accepts the connection, and no process ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = await invoke(topics_tool.main, "--bootstrap-server", address, *LIST)
    assert done.stderr.startswith(f"error: no broker answered at {address} within 0.3 s: ")


async def test_reach_succeeds_once_the_cluster_starts() -> None:
    reported: list[str] = []
    async with mini_broker() as broker:
        await broker.server.close(timeout_ms=1000)
        host, port = broker.address.split(":")
        async with ClusterClient(broker.address) as client:
            reaching = asyncio.create_task(
                reach(client, [(host, int(port))], timeout_ms=60_000, report=reported.append)
            )
            while not reported:
                await asyncio.sleep(0.01)
            await broker.start_again()
            await reaching
            assert client.metadata.brokers
    assert len(reported) == 1


def _active(_: RpcRequest) -> RpcResponse:
    return ListPartitionReassignmentsResponseRpc(partitions=())


def _standby(_: RpcRequest) -> RpcResponse:
    raise NotControllerError("another one is active")


async def test_tool_at_controller_port_names_the_expected_broker_port() -> None:
    for answer in (_active, _standby):
        controller = ScriptedController(answer)
        async with serving(controller):
            address = f"127.0.0.1:{controller.server.port}"
            words = ("--bootstrap-server", address, "--list", "--timeout", "600")
            done = await invoke(topics_tool.main, *words)
        assert done.exit_code == 1
        assert done.stderr == (
            f"error: {address} is a controller's port, and this needs a broker's: what `listeners` "
            "says in a broker's configuration, 9092 by default\n"
        )


async def test_tool_at_broker_port_names_the_controller_quorum_voters() -> None:
    async with mini_broker() as broker:
        words = ("--entity-type", "brokers", "--describe", "--timeout", "600")
        asked = ("--bootstrap-controller", broker.address, *words)
        done = await invoke(configs_tool.main, *asked)
        start = f"error: {broker.address} is a broker's port, and this needs a controller's: "
        assert done.exit_code == 1
        assert done.stderr == (
            f"{start}what `controller.quorum.voters` says in the broker's configuration\n"
        )
        broker.broker_configs["controller.quorum.voters"] = "100@c1:9090,101@c2:9090"
        done = await invoke(configs_tool.main, *asked)
        assert done.stderr == f"{start}c1:9090,c2:9090\n"


async def test_configs_tool_without_controller_names_the_address(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    words = ("--entity-type", "brokers", "--describe", "--timeout", "5")
    done = await invoke(configs_tool.main, "--bootstrap-controller", address, *words)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: no controller answered at {address}: cannot connect")
