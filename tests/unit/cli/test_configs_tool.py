"""``kraftjbod-configs``, against a scripted broker and a scripted controller behind real
listeners."""

from __future__ import annotations

import json

import click
import pytest

from kraftjbod.cli.clients.config_admin import ConfigEntry, ConfigSource, ConfigSynonym
from kraftjbod.cli.configs_tool import entry_line, main, parse_added
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    DescribedResource,
    DescribeDynamicConfigsRequest,
    DescribeDynamicConfigsResponse,
    IncrementalAlterConfigsRequestRpc,
    IncrementalAlterConfigsResponseRpc,
    ResourceOutcome,
)
from kraftjbod.protocol.rpc_controller_messages import (
    DescribeClusterRequestRpc,
    DescribeClusterResponseRpc,
    DescribedController,
)
from kraftjbod.protocol.rpc_messages import ListenerInfo, RpcRequest, RpcResponse
from tests.unit.broker.scripted_controller import ScriptedController, serving
from tests.unit.cli.mini_broker import BROKER_ID, MiniBroker, invoke, mini_broker

CORDONS = "cordoned.log.dirs"
OUR_BROKER = ("--entity-type", "brokers", "--entity-name", str(BROKER_ID))


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1, b = 2,", {"a": "1", "b": "2"}),
        ("c=[/d1,/d2],a=x=y", {"c": "/d1,/d2", "a": "x=y"}),
        ("c=[],a=", {"c": "", "a": ""}),
        ("c=*", {"c": "*"}),
    ],
)
def test_parse_added_accepts_pairs_with_bracketed_lists(text: str, pairs: dict[str, str]) -> None:
    assert parse_added(text) == pairs


@pytest.mark.parametrize("text", ["a", "=1", "a=1,b", "c=[1,2],3"])
def test_parse_added_rejects_malformed_pairs(text: str) -> None:
    with pytest.raises(click.BadParameter, match='must be in the format "key=val"'):
        parse_added(text)


def test_entry_line_has_kafkas_format() -> None:
    entry = ConfigEntry(
        name=CORDONS,
        value="/d1",
        source=ConfigSource.DYNAMIC_BROKER_CONFIG,
        is_read_only=False,
        synonyms=(
            ConfigSynonym(CORDONS, "/d1", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ConfigSynonym(CORDONS, "", ConfigSource.DEFAULT_CONFIG),
        ),
    )
    assert entry_line(entry) == (
        "  cordoned.log.dirs=/d1 sensitive=false "
        "synonyms={DYNAMIC_BROKER_CONFIG:cordoned.log.dirs=/d1, DEFAULT_CONFIG:cordoned.log.dirs=}"
    )


async def _call(broker: MiniBroker, *words: str) -> tuple[int, str, str]:
    done = await invoke(main, "--bootstrap-server", broker.address, *words)
    return done.exit_code, done.stdout, done.stderr


async def test_configs_tool_alters_and_describes_topic_with_kafkas_lines() -> None:
    topic = ("--entity-type", "topics", "--entity-name", "t")
    async with mini_broker() as broker:
        broker.create("t", 1)
        added = ("--add-config", "retention.ms=5,flush.ms=7")
        assert await _call(broker, "--alter", *topic, *added) == (
            0,
            "Completed updating config for topic t.\n",
            "",
        )
        assert broker.topics["t"].configs == {"retention.ms": "5", "flush.ms": "7"}
        code, out, _ = await _call(broker, "--describe", *topic)
        assert (code, out.splitlines()[0]) == (0, "Dynamic configs for topic t are:")
        assert [line.split(" sensitive=false ")[0] for line in out.splitlines()[1:]] == [
            "  flush.ms=7",
            "  retention.ms=5",
        ]
        _, out, _ = await _call(broker, "--describe", "--all", *topic)
        assert out.startswith("All configs for topic t are:\n")
        assert "\n  retention.bytes=-1 sensitive=false " in out
        await _call(broker, "--alter", *topic, "--delete-config", "retention.ms, flush.ms")
        assert broker.topics["t"].configs == {}


async def test_alter_refuses_to_delete_config_that_is_not_set() -> None:
    async with mini_broker() as broker:
        words = ("--alter", *OUR_BROKER, "--delete-config", "nope,retention.bytes")
        code, _, err = await _call(broker, *words)
        assert code == 1
        assert err == ("error: Invalid config(s): nope,retention.bytes\n")


async def test_alter_accepts_list_value_in_brackets() -> None:
    async with mini_broker() as broker:
        added = ("--add-config", f"{CORDONS}=[/d1,/d2]")
        reported = await _call(broker, "--alter", *OUR_BROKER, *added)
        assert reported == (0, f"Completed updating config for broker {BROKER_ID}.\n", "")
        assert broker.broker_configs == {CORDONS: "/d1,/d2"}


async def test_alter_and_describe_default_config_of_all_brokers() -> None:
    async with mini_broker() as broker:
        default = ("--entity-type", "brokers", "--entity-default")
        reported = await _call(broker, "--alter", *default, "--add-config", f"{CORDONS}=*")
        assert reported == (
            0,
            "Completed updating default config for brokers in the cluster.\n",
            "",
        )
        _, out, _ = await _call(broker, "--describe", "--entity-type", "brokers")
        assert [line for line in out.splitlines() if line.endswith(" are:")] == [
            f"Dynamic configs for broker {BROKER_ID} are:",
            "Default configs for brokers in the cluster are:",
        ]


async def test_describe_of_unknown_broker_prints_kafkas_sentence() -> None:
    async with mini_broker() as broker:
        words = ("--describe", "--entity-type", "brokers", "--entity-name", "9")
        assert await _call(broker, *words) == (
            0,
            "The broker '9' doesn't exist and doesn't have dynamic config.\n",
            "",
        )


async def test_describe_with_format_json_prints_sources() -> None:
    async with mini_broker() as broker:
        broker.create("t", 1, **{"retention.ms": "5"})
        words = ("--describe", "--entity-type", "topics", "--format", "json")
        _, out, _ = await _call(broker, *words)
        ((entity,),) = (json.loads(out)["entities"],)
        assert (entity["type"], entity["name"]) == ("topic", "t")
        assert [(c["name"], c["value"], c["source"]) for c in entity["configs"]] == [
            ("retention.ms", "5", "DYNAMIC_TOPIC_CONFIG")
        ]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "Exactly one of --bootstrap-server or --bootstrap-controller"),
        (("--bootstrap-server", "h:1"), "exactly one of --describe, --alter"),
        (("--bootstrap-server", "h:1", "--alter"), "--alter needs --entity-name"),
        (("--bootstrap-server", "h:1", "--alter", "--entity-default"), "needs --add-config"),
        (("--bootstrap-server", "h:1", "--describe", "--add-config", "a=1"), "belong to --alter"),
        (("--bootstrap-server", "h:1", "--describe", "--entity-name", "x"), "valid integer"),
        (("--bootstrap-controller", "h:1", "--describe", "--all"), "--all needs --entity-name"),
    ],
)
async def test_configs_tool_rejects_wrong_options_with_reason(
    words: tuple[str, ...], why: str
) -> None:
    done = await invoke(main, "--entity-type", "brokers", *words)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())


# --- a stopped broker ----------------------------------------------------------------------------


class DeadBroker:
    """A scripted controller's answers about broker 2, which is stopped."""

    def __init__(self) -> None:
        self.values = {CORDONS: "/d1,/d2"}
        self.refusal = ErrorCode.NONE
        self.changes: list[ConfigChange] = []

    def answer(self, request: RpcRequest) -> RpcResponse:
        if isinstance(request, DescribeClusterRequestRpc):
            raise OperatingError("its software is older", code=ErrorCode.UNSUPPORTED_VERSION)
        if isinstance(request, DescribeDynamicConfigsRequest):
            names = request.names or ("2",)
            found = [DescribedResource(name=n, values=self.values) for n in names if n == "2"]
            return DescribeDynamicConfigsResponse(resources=tuple(found))
        assert isinstance(request, IncrementalAlterConfigsRequestRpc)
        assert request.validated_by is None
        resource: AlteredResource
        (resource,) = request.resources
        self.changes += resource.changes
        outcome = ResourceOutcome(
            resource_type=4, name=resource.name, error_code=self.refusal, error_message="subset"
        )
        return IncrementalAlterConfigsResponseRpc(resources=(outcome,))

    async def call(self, *words: str, name: str = "2") -> tuple[int, str, str]:
        controller = ScriptedController(self.answer)
        async with serving(controller):
            # The first address is unreachable; the second one is the active controller.
            address = f"127.0.0.1:1,127.0.0.1:{controller.server.port}"
            entity = ("--entity-type", "brokers", "--entity-name", name)
            done = await invoke(main, "--bootstrap-controller", address, *entity, *words)
            return done.exit_code, done.stdout, done.stderr


async def test_describe_at_controller_shows_config_of_stopped_broker() -> None:
    assert await DeadBroker().call("--describe") == (
        0,
        "Dynamic configs for broker 2 are:\n"
        "  cordoned.log.dirs=/d1,/d2 sensitive=false "
        "synonyms={DYNAMIC_BROKER_CONFIG:cordoned.log.dirs=/d1,/d2}\n",
        "",
    )
    assert (await DeadBroker().call("--describe", name="3"))[1] == (
        "Dynamic configs for broker 3 are:\n"
    )


async def test_describe_of_unreachable_controller_shows_dynamic_config_only() -> None:
    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, DescribeClusterRequestRpc):
            listeners = (ListenerInfo(name="CONTROLLER", host="127.0.0.1", port=1),)
            away = DescribedController(
                controller_id=BrokerId(2), is_voter=True, listeners=listeners
            )
            return DescribeClusterResponseRpc(
                cluster_id="c",
                controller_id=BrokerId(1),
                epoch=1,
                controllers=(away,),
                features=(),
            )
        assert isinstance(request, DescribeDynamicConfigsRequest)
        found = DescribedResource(name="2", values={"num.partitions": "3"})
        return DescribeDynamicConfigsResponse(resources=(found,))

    controller = ScriptedController(answer)
    async with serving(controller):
        to = ("--bootstrap-controller", f"127.0.0.1:{controller.server.port}")
        words = (*to, "--entity-type", "brokers", "--entity-name", "2", "--describe")
        known = await invoke(main, *words)
        assert (known.exit_code, known.stdout.splitlines()[1:]) == (
            0,
            [
                "  num.partitions=3 sensitive=false "
                "synonyms={DYNAMIC_BROKER_CONFIG:num.partitions=3}"
            ],
        )
        unknown = await invoke(main, *words, "--all")
        assert (unknown.exit_code, unknown.stdout) == (1, "")
        assert "controller 2 is away, and only itself knows its file" in unknown.stderr


async def test_alter_at_controller_changes_cordons_of_stopped_broker() -> None:
    dead = DeadBroker()
    done = "Completed updating config for broker 2.\n"
    assert await dead.call("--alter", "--add-config", f"{CORDONS}=[/d1]") == (0, done, "")
    assert await dead.call("--alter", "--delete-config", CORDONS) == (0, done, "")
    assert dead.changes == [
        ConfigChange(name=CORDONS, operation=0, value="/d1"),
        ConfigChange(name=CORDONS, operation=1),
    ]


async def test_alter_at_controller_reports_refusal() -> None:
    dead = DeadBroker()
    dead.refusal = ErrorCode.INVALID_CONFIG
    code, out, err = await dead.call("--alter", "--add-config", f"{CORDONS}=/d3")
    assert (code, out, err) == (1, "", "error: subset\n")


@pytest.mark.parametrize("addresses", ["", "nowhere", "h:x"])
async def test_configs_tool_rejects_malformed_controller_address(addresses: str) -> None:
    words = ("--describe", "--entity-type", "brokers")
    done = await invoke(main, "--bootstrap-controller", addresses, *words)
    assert done.exit_code == 1
    assert "write HOST:PORT" in done.stderr
