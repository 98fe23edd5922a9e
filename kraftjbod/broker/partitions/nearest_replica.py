"""PURE. Which replica a consumer reads, if he says where he is (KIP-392).

As Kafka's ``RackAwareReplicaSelector``: the leader if it is in his rack, else the in-sync replica
there that is furthest, else the leader. Whom the leader sends him to has what he asks for, on a
disk that is online and neither full nor hung.

A follower serves him up to what it knows to be committed, and only while metadata has it in sync:
one whose disk is full or hangs, or that lags, would leave him without news. He returns to the
leader with the error.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.broker.partitions.partition import ANY_EPOCH, Partition, Role
from kraftjbod.core.ids import BrokerId
from kraftjbod.metadata.registrations import BrokerRegistration


def nearest_replica(
    partition: Partition,
    brokers: Mapping[BrokerId, BrokerRegistration],
    *,
    rack: str,
    fetch_offset: int,
    listener_name: str,
) -> BrokerId | None:
    """Of a partition that is led here, for a consumer in ``rack``; None: its leader."""
    own = brokers.get(partition.broker_id)
    if not partition.is_leader or own is None or own.rack == rack:
        return None
    found: list[tuple[int, int, BrokerId]] = []
    for broker_id, directory_id in zip(partition.replicas, partition.directories, strict=True):
        follower, broker = partition.follower(broker_id), brokers.get(broker_id)
        if follower is None or broker is None or broker.rack != rack:
            continue
        is_well = (
            broker_id in partition.isr
            and broker.is_active
            and broker.has_online_dir(directory_id)
            and not broker.is_impaired(directory_id)
            and any(listener.name == listener_name for listener in broker.listeners)
        )
        # One that did not say yet where its log starts may not have it.
        if is_well and 0 <= follower.log_start_offset <= fetch_offset <= follower.log_end_offset:
            found.append((follower.log_end_offset, follower.last_caught_up_ms, broker_id))
    return max(found)[-1] if found else None


def require_readable(partition: Partition, expected_epoch: int) -> None:
    """Let leader and in-sync followers through, if the consumer's leader epoch is ours.

    :raises OperatingError: as :meth:`Partition.require_leader`.
    """
    if (
        partition.role is Role.FOLLOWER
        and expected_epoch in (ANY_EPOCH, partition.leader_epoch)
        and partition.broker_id in partition.isr
    ):
        return
    partition.require_leader(expected_epoch)
