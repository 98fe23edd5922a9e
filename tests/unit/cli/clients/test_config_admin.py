"""Requests of the tools about configurations: values, sources and refusals."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients import config_admin as admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from tests.unit.cli.mini_broker import BROKER_ID, mini_broker

RATE = "leader.replication.throttled.rate"
TOPIC = admin.ConfigResource(admin.ResourceType.TOPIC, "t")
BROKER = admin.ConfigResource(admin.ResourceType.BROKER, str(BROKER_ID))
ALL_BROKERS = admin.ConfigResource(admin.ResourceType.BROKER, "")


async def test_alter_configs_changes_single_values_that_describe_reports_with_source() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 1, **{"segment.ms": "9"})
        await client.refresh_metadata()
        await admin.incremental_alter_configs(
            client,
            {
                TOPIC: [
                    admin.ConfigChange("retention.ms", "5"),
                    admin.ConfigChange("segment.ms", None, admin.ConfigOperation.DELETE),
                ],
                BROKER: [admin.ConfigChange(RATE, "1000")],
            },
        )
        described = await admin.describe_configs(client, [TOPIC, BROKER])
        rate = described[BROKER][RATE]
        assert (rate.value, rate.source) == ("1000", admin.ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert rate.synonyms == ((RATE, "1000", admin.ConfigSource.DYNAMIC_BROKER_CONFIG),)
        assert described[TOPIC]["retention.bytes"].source is admin.ConfigSource.DEFAULT_CONFIG
        topic = admin.ConfigResource(admin.ResourceType.TOPIC, "t")
        described = await admin.describe_configs(client, [topic])
        assert admin.own_configs(described) == {"t": {"retention.ms": "5"}}


async def test_alter_configs_with_validate_only_changes_nothing() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        change = {ALL_BROKERS: [admin.ConfigChange(RATE, "1000")]}
        await admin.incremental_alter_configs(client, change, validate_only=True)
        assert broker.broker_configs == {}


async def test_alter_configs_error_has_code_and_message_of_response() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.fail_next["IncrementalAlterConfigs"] = [ErrorCode.INVALID_CONFIG]
        with pytest.raises(OperatingError, match="not so") as e:
            await admin.incremental_alter_configs(
                client, {ALL_BROKERS: [admin.ConfigChange(RATE, "0")]}
            )
        assert e.value.code is ErrorCode.INVALID_CONFIG


async def test_config_admin_alters_offline_broker_through_another_but_cannot_describe_it() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        down = admin.ConfigResource(admin.ResourceType.BROKER, "99")
        await admin.incremental_alter_configs(client, {down: [admin.ConfigChange(RATE, "3")]})
        assert broker.broker_configs == {RATE: "3"}
        with pytest.raises(OperatingError, match="broker 99 is not in the cluster"):
            await admin.describe_configs(client, [down])


def test_config_source_with_unknown_number_is_unknown() -> None:
    assert admin.ConfigSource(99) is admin.ConfigSource.UNKNOWN
    assert str(ALL_BROKERS) == "broker (all)"
