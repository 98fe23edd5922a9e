"""Requests about log directories and reassignments, and the refusals they come back with."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients import replica_admin as admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.mini_broker import BROKER_ID, DIRECTORY_ID, mini_broker

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_log_dirs_are_described_dead_ones_too() -> None:
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


async def test_what_a_broker_of_kafka_does_not_report_is_none() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        _, silent = await admin.describe_log_dirs(client, BROKER_ID)
        assert (silent.directory_id, silent.state, silent.queued_assignments) == (None, None, None)
        assert not silent.is_cordoned


async def test_replicas_move_and_refusals_are_reported_by_partition() -> None:
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


async def test_reassignments_carry_target_dirs_are_listed_and_cancelled() -> None:
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


async def test_a_refused_reassignment_says_why_for_its_partition() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.fail_next["AlterPartitionReassignments"] = [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
        cancel = admin.Reassignment(topic_partition=T0, replicas=None)
        refused = await admin.alter_partition_reassignments(client, [cancel])
        assert (refused[T0].code, refused[T0].message) == (
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            "no such thing",
        )


async def test_an_error_of_the_whole_call_is_raised() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.fail_next["ListPartitionReassignments"] = [ErrorCode.NOT_CONTROLLER]
        with pytest.raises(OperatingError, match="NOT_CONTROLLER"):
            await admin.list_partition_reassignments(client)
