"""``kraftjbod-broker-api-versions`` prints the lines of Kafka's tool."""

from __future__ import annotations

import json

from kraftjbod.cli.cluster.broker_api_versions_tool import main, versions_text
from kraftjbod.protocol.kafka_codec import SUPPORTED, ApiKey
from tests.unit.cli.mini_broker import BROKER_ID, invoke, mini_broker


def test_versions_text_marks_versions_usable_by_both_sides() -> None:
    low, high = SUPPORTED[ApiKey.PRODUCE]
    text = versions_text(
        {
            ApiKey.PRODUCE: (low, high + 1),
            ApiKey.FETCH: (90, 91),
            ApiKey.METADATA: (0, 0),
            20_000: (0, 2),
        }
    )
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    assert lines[0] == "("
    assert lines[1:3] == [
        f"Produce(0): {low} to {high + 1} [usable: {high}]",
        "Fetch(1): 90 to 91 [unusable: node too new]",
    ]
    assert "Metadata(3): 0 [usable: 0]" in lines
    assert "FindCoordinator(10): UNSUPPORTED" in lines
    assert lines[-2:] == ["UNKNOWN(20000): 0 to 2", ")"]


async def test_broker_api_versions_asks_each_broker() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        printed = await invoke(main, "--bootstrap-server", broker.address)
        head = f"{broker.address} (id: {BROKER_ID} rack: null isFenced: false) -> (\n"
        assert printed.stdout.startswith(head), printed.output
        assert "\tProduce(0): " in printed.stdout
        reported = json.loads(
            (await invoke(main, "--bootstrap-server", broker.address, "--json")).stdout
        )
        [one] = reported["brokers"]
        assert (one["id"], one["apis"][0]["name"]) == (BROKER_ID, "Produce")
