"""LOOP. ``SaturatedFollowers``: asks leaders for the log starts of replicas in full directories.

A replica in a full directory does not fetch, so it would not learn of a deletion of records
(KIP-107), which may be the only way to free space (KIP-928). So this broker asks the leaders at
intervals until the directory has free space again.

* A replica advances its log start up to its own high watermark. If its log ends at or before the
  leader's log start, it has no records of use and restarts its log there.
* Retention deletes segments below the new start at once.
* Requests and operations that failed are repeated at the next interval.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.partitions.partition import Partition
from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.replica_reads import EARLIEST_TIMESTAMP
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, LeaderEpoch, TopicPartition
from kraftjbod.core.telemetry import get_logger
from kraftjbod.protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from kraftjbod.storage.log.log_handle import LogHandle

_INTERVAL_S: Final = 3.0


class _Asking(NamedTuple):
    """A replica, with the state that it had when its leader was asked."""

    replica: HostedReplica
    partition: Partition
    handle: LogHandle
    leader_epoch: LeaderEpoch


class SaturatedFollowers:
    """Asks leaders for the log start offsets of replicas in full directories, which do not fetch,
    so that deleted records (KIP-107) free their space there too.

    :meth:`run_requests` runs for the broker's lifetime.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        replicas: HostedReplicas,
        connector: BrokerConnector,
        timeout_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._connector = connector
        self._timeout_ms = timeout_ms
        self._log = get_logger(component="saturated_followers")

    async def run_requests(self) -> None:
        """Call :meth:`check` every 3 s until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        """Ask the leaders of all replicas in full directories once, concurrently, and apply the
        responses."""
        by_leader: dict[BrokerId, list[_Asking]] = defaultdict(list)
        for replica in self._replicas:
            asking = _asking(replica)
            if asking is not None:
                by_leader[asking.partition.leader].append(asking)
        await asyncio.gather(*(self._follow(leader, own) for leader, own in by_leader.items()))

    async def _follow(self, leader: BrokerId, all_asking: Sequence[_Asking]) -> None:
        try:
            response = await self._ask(leader, all_asking)
        except OperatingError as e:
            self._log.info("leader_log_starts_unknown", leader=leader, reason=str(e))
            return
        asked = {asking.replica.topic_partition: asking for asking in all_asking}
        following = []
        for topic in response.topics:
            for part in topic.partitions:
                asking = asked.get(TopicPartition(topic.name, part.partition_index))
                if asking is not None and part.error_code == ErrorCode.NONE:
                    following.append(self._start_at(asking, part.offset))
        await asyncio.gather(*following)

    async def _ask(self, leader: BrokerId, all_asking: Sequence[_Asking]) -> ListOffsetsResponse:
        by_topic: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
        for asking in all_asking:
            topic, index = asking.replica.topic_partition
            by_topic[topic].append(
                ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=index,
                    current_leader_epoch=asking.leader_epoch,
                    timestamp=EARLIEST_TIMESTAMP,
                )
            )
        request = ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
        )
        connection = await self._connector.connect(
            leader, purpose="log-starts", timeout_ms=self._timeout_ms
        )
        try:
            return await connection.request(request, timeout_ms=self._timeout_ms)
        finally:
            connection.close()

    async def _start_at(self, asked: _Asking, leader_log_start: int) -> None:
        handle = asked.handle
        if leader_log_start <= handle.log_start_offset:
            return
        if not self._replicas.is_current(asked.replica) or _asking(asked.replica) != asked:
            return  # It fetches again, or it was replaced.
        try:
            if leader_log_start <= handle.high_watermark:
                await handle.start_at(leader_log_start)
            elif leader_log_start < handle.log_end_offset:
                await handle.start_at(handle.high_watermark)
            else:
                await handle.truncate_fully_and_start_at(leader_log_start)
                asked.partition.truncated(handle.log_end_offset)
            await handle.apply_retention()
        except OperatingError as e:
            self._log.info(
                "leader_log_start_not_followed",
                partition=str(asked.replica.topic_partition),
                reason=str(e),
            )


def _asking(replica: HostedReplica) -> _Asking | None:
    """Return the replica's present state if its leader is to be asked, else None."""
    if replica.state is not ReplicaState.SATURATED:
        return None  # Checked first, because most clusters have no saturated replica.
    partition, handle = replica.partition, replica.handle
    if partition is None or handle is None or not replica.should_follow:
        return None
    return _Asking(replica, partition, handle, partition.leader_epoch)
