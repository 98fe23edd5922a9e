"""ListConfigResources over a real listener."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.errors import ErrorCode
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.protocol.messages import ListConfigResourcesRequest
from tests.unit.broker.broker_rig import brokers, topic

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32


def listed(response: Any) -> list[tuple[int, str]]:
    assert response.error_code == 0
    return [(each.resource_type, each.resource_name) for each in response.config_resources]


async def test_list_config_resources_returns_topics_and_registered_brokers() -> None:
    async with brokers(2) as (rig, _):
        await rig.follow(topic("a"))
        everything = listed(await rig.ask(ListConfigResourcesRequest(), 1))
        assert everything == [(TOPIC, "a"), (BROKER, "1"), (BROKER, "2")]
        brokers_only = ListConfigResourcesRequest(resource_types=[BROKER, BROKER])
        assert listed(await rig.ask(brokers_only, 1)) == everything[1:]


async def test_list_config_resources_returns_groups_that_have_a_configuration() -> None:
    async with brokers() as (rig,):
        own = ConfigRecord(
            resource_type=ResourceType.GROUP,
            resource_name="g",
            name="consumer.session.timeout.ms",
            value="50000",
        )
        await rig.follow(own)
        assert listed(await rig.ask(ListConfigResourcesRequest(resource_types=[GROUP]), 1)) == [
            (GROUP, "g")
        ]


async def test_list_config_resources_returns_no_client_metrics_and_rejects_unknown_types() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic("a"))
        assert listed(await rig.ask(ListConfigResourcesRequest(), 0)) == []
        metrics = ListConfigResourcesRequest(resource_types=[CLIENT_METRICS])
        assert listed(await rig.ask(metrics, 1)) == []
        unknown = await rig.ask(ListConfigResourcesRequest(resource_types=[3]), 1)
        assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION
