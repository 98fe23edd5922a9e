"""Requests of the tools about topics, features and offsets, and the errors that they raise."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients import cluster_admin as admin
from kraftjbod.cli.clients import config_admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from tests.unit.cli.mini_broker import mini_broker


async def test_topic_admin_creates_grows_and_deletes_topic() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        await admin.create_topic(client, "t", partitions=2, configs={"retention.ms": "5"})
        topic = config_admin.ConfigResource(config_admin.ResourceType.TOPIC, "t")
        described = await config_admin.describe_configs(client, [topic])
        assert config_admin.own_configs(described) == {"t": {"retention.ms": "5"}}
        await admin.create_partitions(client, "t", 3)
        assert len((await client.refresh_metadata()).topic("t").partitions) == 3
        await admin.delete_topic(client, "t")
        assert broker.topics == {}


async def test_create_topic_with_assignment_sets_partition_count() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await admin.create_topic(client, "t", assignment={0: [1, 2], 1: [2, 3]})
        assert len(broker.topics["t"].logs) == 2


async def test_create_topic_error_has_code_and_message_of_response() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        with pytest.raises(OperatingError, match="Topic 't' already exists") as e:
            await admin.create_topic(client, "t")
        assert e.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_update_features_raises_level_and_reports_reason_of_refusal() -> None:
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


async def test_describe_features_returns_epoch_and_level_ranges() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        features = await admin.describe_features(client)
        assert features.epoch >= -1
        assert all(f.min_version <= f.max_version for f in features.features)


async def test_list_offsets_returns_offsets_and_names_failed_partition() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        await client.refresh_metadata()
        assert await admin.list_offsets(client, "t", [0, 1], admin.EARLIEST) == {0: 0, 1: 0}
        broker.fail_next["ListOffsets"] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        with pytest.raises(OperatingError, match="t-0"):
            await admin.list_offsets(client, "t", [0], admin.LATEST)
