"""Requests of the tools about log directories and reassignments, and their errors."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients import replica_admin as admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.mini_broker import BROKER_ID, DIRECTORY_ID, mini_broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_describe_log_dirs_includes_offline_directories() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        await client.refresh_metadata()
        good, dead = await admin.describe_log_dirs(client, BROKER_ID)
        assert (good.path, good.total_bytes, len(good.replicas)) == ("/d1", 4096, 2)
        assert (good.directory_id, good.state, good.queued_assignments) == (
            DIRECTORY_ID,
            "online",
            0,
        )
        assert (dead.path, dead.error_code) == ("/d2", ErrorCode.KAFKA_STORAGE_ERROR)


async def test_describe_log_dirs_leaves_fields_empty_that_kafka_does_not_report() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        _, silent = await admin.describe_log_dirs(client, BROKER_ID)
        assert (silent.directory_id, silent.state, silent.queued_assignments) == (None, None, None)
        assert not silent.is_cordoned


async def test_alter_replica_log_dirs_returns_refusals_by_partition() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        assert await admin.alter_replica_log_dirs(client, BROKER_ID, {"/d2": [T0, T1]}) == {}
        assert broker.moves == {"/d2": [("t", 0), ("t", 1)]}
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.LOG_DIR_NOT_FOUND]
        refused = await admin.alter_replica_log_dirs(client, BROKER_ID, {"/d9": [T1]})
        assert refused[T1].code is ErrorCode.LOG_DIR_NOT_FOUND
        assert "t-1" in refused[T1].message
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.KAFKA_STORAGE_ERROR]
        refused = await admin.alter_replica_log_dirs(client, BROKER_ID, {"/d9": [T1]})
        assert refused[T1].code is ErrorCode.KAFKA_STORAGE_ERROR
        assert refused[T1].message == "/d9 is cordoned"


async def test_reassignments_with_target_directories_are_sent_listed_and_cancelled() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        begin = admin.Reassignment(topic_partition=T0, replicas=[1, 2], target_dirs=["any", "/d2"])
        assert await admin.alter_partition_reassignments(client, [begin]) == {}
        assert broker.reassigned["t", 0].target_directories == ["any", "/d2"]
        ongoing = admin.OngoingReassignment(
            replicas=(1, 2, BROKER_ID), adding=(1, 2), removing=(BROKER_ID,)
        )
        assert await admin.list_partition_reassignments(client) == {T0: ongoing}
        assert await admin.list_partition_reassignments(client, [T1]) == {}
        cancel = admin.Reassignment(topic_partition=T0, replicas=None)
        await admin.alter_partition_reassignments(
            client, [cancel], allow_replication_factor_change=False
        )
        assert await admin.list_partition_reassignments(client, [T0]) == {}


async def test_alter_partition_reassignments_returns_refusal_of_each_partition() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.fail_next["AlterPartitionReassignments"] = [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
        cancel = admin.Reassignment(topic_partition=T0, replicas=None)
        refused = await admin.alter_partition_reassignments(client, [cancel])
        assert (refused[T0].code, refused[T0].message) == (
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            "no such thing",
        )


async def test_list_partition_reassignments_raises_error_of_whole_response() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.fail_next["ListPartitionReassignments"] = [ErrorCode.NOT_CONTROLLER]
        with pytest.raises(OperatingError, match="NOT_CONTROLLER"):
            await admin.list_partition_reassignments(client)
