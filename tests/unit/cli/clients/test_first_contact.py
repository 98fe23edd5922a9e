"""What a tool says where a cluster should be, and somebody else is, or nobody."""

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
    ListPartitionReassignmentsResponse,
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


async def test_nobody_there_is_said_at_once_and_given_up_in_time(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    done = await invoke(topics_tool.main, "--bootstrap-server", address, *LIST)
    trying, error = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (1, "")
    assert trying.startswith(f"trying {address} for 0.3 s: cannot connect to {address}")
    assert error.startswith(f"error: no broker answered at {address} within 0.3 s: cannot connect")


async def test_silence_is_given_up_in_time_too() -> None:
    """The system takes the connection, and no process ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = await invoke(topics_tool.main, "--bootstrap-server", address, *LIST)
    assert done.stderr.startswith(f"error: no broker answered at {address} within 0.3 s: ")


async def test_a_cluster_that_comes_up_meanwhile_is_reached() -> None:
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
    return ListPartitionReassignmentsResponse(partitions=())


def _standby(_: RpcRequest) -> RpcResponse:
    raise NotControllerError("another one is active")


async def test_a_controllers_port_is_distinguished_from_a_brokers() -> None:
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


async def test_a_brokers_port_is_distinguished_from_a_controllers() -> None:
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


async def test_where_no_controller_answers_is_said(free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    words = ("--entity-type", "brokers", "--describe", "--timeout", "5")
    done = await invoke(configs_tool.main, "--bootstrap-controller", address, *words)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"error: no controller answered at {address}: cannot connect")
