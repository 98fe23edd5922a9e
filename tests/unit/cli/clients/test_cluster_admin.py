"""Requests about topics, configuration, features and offsets, and the errors they bring."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients import cluster_admin as admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from tests.unit.cli.mini_broker import BROKER_ID, mini_broker


async def test_topics_come_grow_and_go() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        await admin.create_topic(client, "t", partitions=2, configs={"retention.ms": "5"})
        assert await admin.topic_configs(client, ["t"]) == {"t": {"retention.ms": "5"}}
        await admin.create_partitions(client, "t", 3)
        assert len((await client.refresh_metadata()).topic("t").partitions) == 3
        await admin.delete_topic(client, "t")
        assert broker.topics == {}


async def test_an_assignment_replaces_the_numbers() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await admin.create_topic(client, "t", assignment={0: [1, 2], 1: [2, 3]})
        assert len(broker.topics["t"].logs) == 2


async def test_what_the_cluster_says_is_in_the_error() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        with pytest.raises(OperatingError, match="Topic 't' already exists") as e:
            await admin.create_topic(client, "t")
        assert e.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


RATE = "leader.replication.throttled.rate"
TOPIC = admin.ConfigResource(admin.ResourceType.TOPIC, "t")
BROKER = admin.ConfigResource(admin.ResourceType.BROKER, str(BROKER_ID))
ALL_BROKERS = admin.ConfigResource(admin.ResourceType.BROKER, "")


async def test_single_values_change_and_are_described_with_their_source() -> None:
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
        assert await admin.topic_configs(client, ["t"]) == {"t": {"retention.ms": "5"}}


async def test_validating_changes_nothing() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        change = {ALL_BROKERS: [admin.ConfigChange(RATE, "1000")]}
        await admin.incremental_alter_configs(client, change, validate_only=True)
        assert broker.broker_configs == {}


async def test_a_refused_configuration_says_why() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.fail_next["IncrementalAlterConfigs"] = [ErrorCode.INVALID_CONFIG]
        with pytest.raises(OperatingError, match="not so") as e:
            await admin.incremental_alter_configs(
                client, {ALL_BROKERS: [admin.ConfigChange(RATE, "0")]}
            )
        assert e.value.code is ErrorCode.INVALID_CONFIG


async def test_a_broker_that_is_down_is_configured_through_another() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        down = admin.ConfigResource(admin.ResourceType.BROKER, "99")
        await admin.incremental_alter_configs(client, {down: [admin.ConfigChange(RATE, "3")]})
        assert broker.broker_configs == {RATE: "3"}
        with pytest.raises(OperatingError, match="broker 99 is not in the cluster"):
            await admin.describe_configs(client, [down])


def test_sources_that_we_do_not_know_are_unknown() -> None:
    assert admin.ConfigSource(8) is admin.ConfigSource.UNKNOWN
    assert str(ALL_BROKERS) == "broker (all)"


async def test_features_rise_and_refusals_say_why() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        up = admin.UpgradeType.UPGRADE
        await admin.update_features(client, {"metadata.version": 17}, upgrade_type=up)
        assert broker.features == {"metadata.version": 17}
        await admin.update_features(
            client,
            {"metadata.version": 14},
            upgrade_type=admin.UpgradeType.UNSAFE_DOWNGRADE,
            validate_only=True,
        )
        assert broker.features == {"metadata.version": 17}
        broker.fail_next["UpdateFeatures"] = [ErrorCode.INVALID_UPDATE_VERSION]
        with pytest.raises(OperatingError, match="too high"):
            await admin.update_features(client, {"metadata.version": 99}, upgrade_type=up)


async def test_features_are_described_as_far_as_the_broker_says() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        features = await admin.describe_features(client)
        assert features.epoch >= -1
        assert all(f.min_version <= f.max_version for f in features.features)


async def test_offsets_are_asked_from_leaders() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        await client.refresh_metadata()
        assert await admin.list_offsets(client, "t", [0, 1], admin.EARLIEST) == {0: 0, 1: 0}
        broker.fail_next["ListOffsets"] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        with pytest.raises(OperatingError, match="t-0"):
            await admin.list_offsets(client, "t", [0], admin.LATEST)
