"""WIRE. A topic whose replicas are all on the first disks of brokers, as input of the planner."""

from __future__ import annotations

from typing import Final

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.replica_admin import alter_replica_log_dirs
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.gameday.faults.cluster_watch import wait_in_sync
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.gameday.load.topic_load import TopicLoad
from kraftjbod.local.cluster_process import ClusterProcesses

TOPIC: Final = "uneven"
PARTITIONS: Final = 12
REPLICATION_FACTOR: Final = 3
SIZE_BYTES: Final = 60 * 1000 * 1000
_RECORD_BYTES: Final = 10_000
_BATCH_RECORDS: Final = 40
_TIMEOUT_S: Final = 60.0


async def make_uneven_topic(
    client: ClusterClient, cluster: ClusterProcesses, size_bytes: int = SIZE_BYTES
) -> int:
    """Create the topic on first disks only, fill it, and return the number of records.

    ``size_bytes`` is the size of the values of one replica of the whole topic.

    :raises OperatingError: the cluster refused a request, or did not answer in a minute.
    :raises StartupError: the replicas are not in sync after a minute.
    """
    await _ask_for_first_disks(client, cluster)
    await create_topic(
        client, TOPIC, partitions=PARTITIONS, replication_factor=REPLICATION_FACTOR, configs={}
    )
    await wait_in_sync(client, TOPIC, timeout_s=_TIMEOUT_S)
    load = TopicLoad(
        {p: NumberedStream(f"{p}", size_bytes=_RECORD_BYTES) for p in range(PARTITIONS)},
        batch_records=_BATCH_RECORDS,
        least=dict.fromkeys(range(PARTITIONS), size_bytes // _RECORD_BYTES // PARTITIONS),
    )
    load.stop()
    await load.run_load(cluster.bootstrap_servers, TOPIC)
    if load.errors:
        raise OperatingError(f"{TOPIC} was not filled: {'; '.join(load.errors)}")
    await wait_in_sync(client, TOPIC, timeout_s=_TIMEOUT_S)
    return load.acked


async def _ask_for_first_disks(client: ClusterClient, cluster: ClusterProcesses) -> None:
    """Request the first disk before the replicas exist: the broker remembers the path (KIP-113)."""
    partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    for broker_id, broker in cluster.brokers.items():
        first = str(broker.files.log_dirs[0])
        refusals = await alter_replica_log_dirs(client, broker_id, {first: partitions})
        for refusal in refusals.values():
            if refusal.code is not ErrorCode.REPLICA_NOT_AVAILABLE:
                raise refusal
