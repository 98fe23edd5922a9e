"""``kraftjbod-cluster``, against a scripted broker behind a real listener."""

from __future__ import annotations

import json

from kraftjbod.cli.cluster.cluster_tool import main
from kraftjbod.core.errors import ErrorCode
from tests.unit.cli.mini_broker import MiniBroker, invoke, mini_broker
from tests.unit.cli.reassignment.moving_broker import moving_broker


async def _call(broker: MiniBroker, *words: str) -> tuple[int, str, str]:
    done = await invoke(main, words[0], "--bootstrap-server", broker.address, *words[1:])
    return done.exit_code, done.stdout, done.stderr


async def test_cluster_tool_prints_lines_of_kafkas_tool() -> None:
    async with mini_broker() as broker:
        assert await _call(broker, "cluster-id") == (0, "Cluster ID: mini\n", "")
        _, rows, _ = await _call(broker, "list-endpoints")
        assert [row.split() for row in rows.splitlines()] == [
            ["ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"],
            ["7", "127.0.0.1", "1", "null", "unfenced", "broker"],
        ]
        _, document, _ = await _call(broker, "list-endpoints", "--include-fenced-brokers", "--json")
        found = json.loads(document)["endpoints"]
        assert [(node["id"], node["state"]) for node in found] == [(7, "unfenced"), (8, "fenced")]


async def test_unregister_requires_force_while_broker_has_replicas() -> None:
    async with moving_broker() as broker:
        broker.hold("foo", 7)
        code, _, why = await _call(broker, "unregister", "--id", "8")
        assert code == 1
        assert "broker 8 still has 7 replicas" in why
        assert "(foo-0, foo-1, foo-2, foo-3, foo-4, ...)" in why
        assert "kraftjbod-drain --broker 8" in why
        assert "UnregisterBroker" not in broker.asked
        gone = await _call(broker, "unregister", "--id", "8", "--force")
        assert gone == (0, "Broker 8 is no longer registered.\n", "")


async def test_unregister_of_unknown_broker_or_unsupported_api_fails() -> None:
    async with mini_broker() as broker:
        gone = await _call(broker, "unregister", "--id", "8")
        assert gone == (0, "Broker 8 is no longer registered.\n", "")
        assert await _call(broker, "unregister", "-i", "8") == (1, "", "error: not there\n")
        broker.fail_next["UnregisterBroker"] = [ErrorCode.UNSUPPORTED_VERSION]
        code, _, why = await _call(broker, "unregister", "--id", "8")
        assert code == 1
        assert "does not support the broker unregistration API" in why
