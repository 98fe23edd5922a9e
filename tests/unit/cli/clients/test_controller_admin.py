"""Tools with ``--bootstrap-controller``, against real controller decisions behind a real
listener."""

from __future__ import annotations

import json

import click
import pytest

from kraftjbod.cli.cluster import cluster_tool
from kraftjbod.cli.features_tool import main as features
from kraftjbod.core.errors import ErrorCode, NotControllerError, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.protocol.rpc_controller_messages import (
    DescribeClusterRequestRpc,
    DescribeClusterResponseRpc,
    DescribedController,
    DescribedFeature,
)
from kraftjbod.protocol.rpc_messages import ListenerInfo, RpcRequest, RpcResponse
from tests.golden.transcript import World
from tests.unit.broker.scripted_controller import ScriptedController, serving
from tests.unit.cli.mini_broker import invoke

CLUSTER = DescribeClusterResponseRpc(
    cluster_id="c",
    controller_id=BrokerId(100),
    epoch=9,
    controllers=tuple(
        DescribedController(
            controller_id=BrokerId(node),
            is_voter=node != 102,
            listeners=(ListenerInfo(name="CONTROLLER", host=host, port=29_090),),
        )
        for node, host in ((100, "127.0.0.1"), (101, "h"), (102, "h"))
    ),
    features=(
        DescribedFeature(name="kraft.version", lowest=0, highest=1, finalized=0),
        DescribedFeature(name="metadata.version", lowest=14, highest=33, finalized=30),
    ),
)


def _standby(_: RpcRequest) -> RpcResponse:
    raise NotControllerError("not me")


async def _ask(tool: click.Command, world: World, *words: str) -> tuple[int, str, str]:
    """Invoke the tool with three addresses: an unreachable, a standby and the active controller."""

    def answer(request: RpcRequest) -> RpcResponse:
        return CLUSTER if isinstance(request, DescribeClusterRequestRpc) else world.ask(request)

    standby, active = ScriptedController(_standby), ScriptedController(answer)
    async with serving(standby, active):
        ports = (1, standby.server.port, active.server.port)
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        flag = ("--bootstrap-controller", addresses)
        # In a group of commands, the option follows the command's name.
        order = (*flag, *words) if tool is features else (words[0], *flag, *words[1:])
        done = await invoke(tool, *order)
    return done.exit_code, done.stdout, done.stderr


async def test_cluster_tool_prints_id_and_controllers_as_kafka_4_3_does() -> None:
    world = World()
    assert await _ask(cluster_tool.main, world, "cluster-id") == (0, "Cluster ID: c\n", "")
    listed = await _ask(cluster_tool.main, world, "list-endpoints")
    assert listed == (
        0,
        "ID         HOST      PORT       RACK       ENDPOINT_TYPE  \n"
        "100        127.0.0.1 29090      null       controller     \n"
        "101        h         29090      null       controller     \n"
        "102        h         29090      null       controller     \n",
        "",
    )
    _, document, _ = await _ask(cluster_tool.main, world, "list-endpoints", "--json")
    assert [each["isVoter"] for each in json.loads(document)["endpoints"]] == [True, True, False]
    code, _, why = await _ask(
        cluster_tool.main, world, "list-endpoints", "--include-fenced-brokers"
    )
    assert code == 2 and "is only supported with --bootstrap-server option" in why


async def test_cluster_tool_unregisters_brokers_and_controllers() -> None:
    world = World(MetadataVersion.IV_4_4_IV2)
    for line in ("register 3 dirs=a", "controller 102"):
        list(world.run(line))
    code, _, why = await _ask(cluster_tool.main, world, "unregister", "--id", "3")
    assert code == 1 and "ask with --bootstrap-server, or give --force" in why
    gone = await _ask(cluster_tool.main, world, "unregister", "--id", "3", "--force")
    assert gone == (0, "Broker 3 is no longer registered.\n", "")
    for words, result in (
        (("--id", "102"), (0, "Controller 102 is no longer registered.\n", "")),
        (("-i", "102"), (1, "", "error: Controller ID 102 is not currently registered\n")),
    ):
        assert await _ask(cluster_tool.main, world, "unregister-controller", *words) == result
    assert not world.state.brokers and not world.state.controllers


async def test_features_tool_prints_described_and_changed_levels_as_kafka_does() -> None:
    world = World(MetadataVersion.IV_4_3_IV0)
    _, described, _ = await _ask(features, world, "describe")
    # test_features_tool.py tests the format of the lines.
    assert [" ".join(line.split()) for line in described.splitlines()] == [
        "Feature: kraft.version SupportedMinVersion: 0 SupportedMaxVersion: 1 "
        "FinalizedVersionLevel: 0 Epoch: 9",
        "Feature: metadata.version SupportedMinVersion: 3.6-IV2 SupportedMaxVersion: 4.4-IV2 "
        "FinalizedVersionLevel: 4.3-IV0 Epoch: 9",
    ]
    elr = ("--feature", "eligible.leader.replicas.version")
    for words, said in (
        (("upgrade", elr[0], f"{elr[1]}=1"), f"{elr[1]} was upgraded to 1."),
        (("disable", *elr, "--dry-run"), f"{elr[1]} can be disabled."),
        (("disable", *elr), f"{elr[1]} was disabled."),
        (("downgrade", "--metadata", "3.7-IV2"), "metadata.version was downgraded to 17."),
    ):
        assert await _ask(features, world, *words) == (0, f"{said}\n", "")
    assert world.state.features == {"metadata.version": 17, elr[1]: 0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("disable", "--feature", "metadata.version", "--feature", "group.version"),
            "Could not disable group.version. Invalid update version 0 for feature metadata.version"
            ". Unknown metadata.version 0. Supported: ",
        ),
        (
            ("upgrade", "--feature", "group.version=7", "--feature", "metadata.version=30"),
            "Could not upgrade group.version to 7. Invalid update version 7 for feature "
            "group.version. Supported: 0 to 1.",
        ),
    ],
)
async def test_features_tool_refusal_names_reason_of_the_refused_feature(
    words: tuple[str, ...], said: str
) -> None:
    code, out, err = await _ask(features, World(), *words)
    assert (code, err) == (1, "error: 2 out of 2 operation(s) failed.\n")
    assert out.startswith(said)


async def test_features_tool_reports_controller_with_older_software() -> None:
    def older(_: RpcRequest) -> RpcResponse:
        raise OperatingError("not served here", code=ErrorCode.UNSUPPORTED_VERSION)

    controller = ScriptedController(older)
    async with serving(controller):
        address = f"127.0.0.1:{controller.server.port}"
        done = await invoke(features, "--bootstrap-controller", address, "describe")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "an older version" in done.stderr


async def test_features_tool_without_active_controller_prints_the_standby_error() -> None:
    standby = ScriptedController(_standby)
    async with serving(standby):
        address = f"127.0.0.1:{standby.server.port}"
        done = await invoke(features, "--bootstrap-controller", address, "describe")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "not me" in done.stderr


async def test_features_tool_with_both_bootstrap_options_is_a_usage_error() -> None:
    both = await invoke(
        features, "--bootstrap-controller", "h:1", "--bootstrap-server", "h:1", "describe"
    )
    assert both.exit_code == 2 and "Exactly one of" in both.stderr
