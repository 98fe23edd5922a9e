"""``kraftjbod-health``, against a scripted broker and controllers behind real listeners."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from kraftjbod.cli.health_tool import Health, main
from kraftjbod.core.errors import ErrorCode, NotControllerError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.rpc_config_messages import (
    ListPartitionReassignmentsRequestRpc,
    ListPartitionReassignmentsResponseRpc,
)
from kraftjbod.protocol.rpc_messages import (
    RpcRequest,
    RpcResponse,
)
from kraftjbod.protocol.rpc_quorum_messages import (
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
)
from tests.unit.broker.scripted_controller import ScriptedController, serving
from tests.unit.cli.mini_broker import BROKER_ID, MiniBroker, invoke, mini_broker


async def _ask(broker: MiniBroker, *words: str) -> tuple[int, str, str]:
    done = await invoke(main, "--bootstrap-server", broker.address, *words)
    return done.exit_code, done.stdout, done.stderr


async def test_health_of_broker_with_offline_directory_is_ok() -> None:
    async with mini_broker() as broker:
        code, reported, errors = await _ask(broker)
        assert (code, errors) == (0, "")
        assert reported.splitlines() == [
            f"broker 7 at {broker.address} serves, 1 of 2 log directories are online",
            "/d2 is offline",
        ]
        code, reported, errors = await _ask(broker, "--json")
        assert (code, errors) == (0, "")
        assert json.loads(reported) == {
            "serves": True,
            "reason": None,
            "brokerId": 7,
            "logDirs": [{"path": "/d1", "state": "online"}, {"path": "/d2", "state": "offline"}],
        }


async def test_health_of_fenced_or_unregistered_broker_fails() -> None:
    async with mini_broker() as broker:
        broker.fencing[BROKER_ID] = True
        why = f"error: broker 7 at {broker.address} does not serve: it is fenced\n"
        assert await _ask(broker) == (1, "", why)
        code, reported, errors = await _ask(broker, "--json")
        document = json.loads(reported)
        assert (code, errors) == (1, why)
        assert (document["serves"], document["reason"]) == (False, "it is fenced")
        assert len(document["logDirs"]) == 2
        del broker.fencing[BROKER_ID]
        assert (await _ask(broker))[2].endswith("does not serve: it is not registered\n")


async def test_health_of_broker_without_reported_id_skips_the_fencing_check() -> None:
    """Kafka's brokers report no id. Broker 8 is fenced, and may or may not be the broker asked."""
    async with mini_broker() as broker:
        broker.gives_id = False
        code, reported, _ = await _ask(broker)
        assert code == 0
        assert reported.startswith(f"the broker at {broker.address} serves, 1 of 2")
        assert broker.asked == ["DescribeLogDirs"]


async def test_health_names_option_for_the_other_kind_of_daemon() -> None:
    async with mini_broker() as broker:
        done = await invoke(main, "--controller", broker.address)
    assert done.stderr.endswith("it is a broker: give it as --bootstrap-server\n")
    controller = ScriptedController(_active)
    async with serving(controller):
        done = await invoke(main, "--bootstrap-server", f"127.0.0.1:{controller.server.port}")
    assert done.stderr.endswith("it is a controller: give it as --bootstrap-controller\n")


async def test_health_reports_error_response_in_one_line() -> None:
    async with mini_broker() as broker:
        broker.fail_next["DescribeLogDirs"].append(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        code, reported, errors = await _ask(broker, "--json")
    reason = "log directories: CLUSTER_AUTHORIZATION_FAILED"
    assert (code, errors) == (
        1,
        f"error: the broker at {broker.address} does not serve: {reason}\n",
    )
    assert json.loads(reported) == {"serves": False, "reason": reason}


@pytest.mark.parametrize("option", ["--bootstrap-server", "--bootstrap-controller"])
async def test_health_of_unreachable_daemon_fails_with_address(option: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        done = await invoke(main, option, f"127.0.0.1:{port}")
    assert done.exit_code == 1
    assert f"at 127.0.0.1:{port} does not serve: " in done.stderr
    assert f"cannot connect to 127.0.0.1:{port}" in done.stderr


@pytest.mark.parametrize("option", ["--bootstrap-server", "--bootstrap-controller"])
async def test_health_of_hanging_daemon_fails_with_timeout(option: str) -> None:
    """The kernel accepts the connection, and no process ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = await invoke(main, option, f"127.0.0.1:{port}", "--timeout", "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "does not serve: " in done.stderr
    assert "1000 ms" in done.stderr


def _active(_: RpcRequest) -> RpcResponse:
    return ListPartitionReassignmentsResponseRpc(partitions=())


def _standby(leader_id: int, refusal: str | None = None) -> Callable[[RpcRequest], RpcResponse]:
    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, DescribeQuorumRequestRpc) and request.of_any:
            node_id = BrokerId(101)
            return DescribeQuorumResponseRpc(
                node_id=node_id, cluster_id="c", leader_id=leader_id, refusal=refusal
            )
        raise NotControllerError("another one is active")

    return answer


async def test_health_of_active_controller_and_its_followers_is_ok() -> None:
    active, standby = ScriptedController(_active), ScriptedController(_standby(-1))
    async with serving(active, standby):
        address = f"127.0.0.1:{active.server.port}"
        done = await invoke(main, "--bootstrap-controller", address)
        assert (done.exit_code, done.stdout) == (0, f"the controller at {address} serves\n")
        assert active.seen == [ListPartitionReassignmentsRequestRpc(partitions={})]
        done = await invoke(main, "--controller", address, "--json")
        assert json.loads(done.stdout) == {"serves": True, "reason": None}
        address = f"127.0.0.1:{standby.server.port}"
        done = await invoke(main, "--controller", address)
        assert done.exit_code == 1
        assert done.stderr == (
            f"error: the controller at {address} does not serve: another one is active\n"
        )
        standby.answer = _standby(101)
        assert (await invoke(main, "--controller", address)).exit_code == 1, "only just elected"
        standby.answer = _standby(100)
        assert (await invoke(main, "--controller", address)).exit_code == 0
        standby.answer = _standby(100, "another disk than before")
        done = await invoke(main, "--controller", address)
        assert done.exit_code == 1, "it knows the leader, but receives nothing from it"
        assert "the active one, 100, refuses it: another disk than before" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Exactly one of"),
        (("--bootstrap-server", "a:1", "--controller", "b:1"), "Exactly one of"),
        (("--bootstrap-server", "a:1,b:2"), "write HOST:PORT"),
        (("--bootstrap-server", "a"), "write HOST:PORT"),
        (("--controller", "a:x"), "write HOST:PORT"),
        (("--controller", ""), "write HOST:PORT"),
        (("--controller", "a:1", "--timeout", "0"), "--timeout"),
    ],
)
async def test_health_rejects_wrong_options_with_reason(words: tuple[str, ...], why: str) -> None:
    done = await invoke(main, *words)
    assert done.exit_code == 2
    assert why in done.stderr


def test_health_text_of_healthy_broker_is_one_line() -> None:
    health = Health(who="broker 1", broker_id=1, log_dirs={"/a": "online", "/b": "online"})
    assert health.text() == "broker 1 serves, 2 of 2 log directories are online"


def test_health_tool_of_broker_imports_no_pydantic_and_no_uvloop() -> None:
    """Health checks run all day, and importing the RPC messages would double their cost."""
    program = (
        "import sys, kraftjbod.cli.health_tool; "
        "print([m for m in sys.modules if m.split('.')[0] in ('pydantic', 'uvloop')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
