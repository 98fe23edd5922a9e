"""PURE. The replica that a consumer with ``client.rack`` reads from (KIP-392).

As in Kafka's ``RackAwareReplicaSelector``: the leader if it is in the consumer's rack, else the
most advanced in-sync replica in that rack, else the leader. The chosen follower has the fetch
offset, and its directory is online and neither saturated nor stalled.

A follower serves records below its own high watermark, and only while the metadata lists it in the
ISR: a lagging follower, or one on a full or hung disk, would return nothing new. The error sends
the consumer back to the leader.
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
    """Return the follower that the consumer should read from.

    None if it should read from the leader, or if this broker does not lead the partition.

    :param rack: the rack of the consumer.
    :param listener_name: the consumer's listener, which the follower's broker must have too.
    """
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
        # A follower that did not report its log start offset yet may lack the fetch offset.
        if is_well and 0 <= follower.log_start_offset <= fetch_offset <= follower.log_end_offset:
            found.append((follower.log_end_offset, follower.last_caught_up_ms, broker_id))
    return max(found)[-1] if found else None


def require_readable(partition: Partition, expected_epoch: int) -> None:
    """Require that this replica may serve a consumer: it leads, or it is an in-sync follower.

    :param expected_epoch: the consumer's leader epoch, which must be the current one; ``ANY_EPOCH``
        if the consumer does not know it.
    :raises OperatingError: as :meth:`Partition.require_leader`.
    """
    if (
        partition.role is Role.FOLLOWER
        and expected_epoch in (ANY_EPOCH, partition.leader_epoch)
        and partition.broker_id in partition.isr
    ):
        return
    partition.require_leader(expected_epoch)
