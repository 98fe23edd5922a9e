"""PURE. The low watermark of a partition (KIP-107): no replica returns records below it."""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.broker.partitions.follower_state import UNKNOWN_OFFSET
from kraftjbod.broker.partitions.partition import Partition
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.metadata.registrations import BrokerRegistration


def low_watermark_of(
    partition: Partition, log_start_offset: int, brokers: Mapping[BrokerId, BrokerRegistration]
) -> int:
    """Return the least log start offset of the leader and of the replicas that deletions wait for.

    Deletions wait for a replica of the maximal ISR or of the ELR (KIP-966) until the metadata
    removes it, because it may become leader. They wait for another replica if its broker is not
    fenced and its directory is online and not impaired. The rest adopts the log start before it
    joins the ISR.

    :param log_start_offset: the leader's own.
    :return: UNKNOWN_OFFSET while one of these replicas has not fetched in this leader epoch.
    """
    pending = partition.pending_isr_change
    may_lead = {*partition.isr, *partition.eligible, *(() if pending is None else pending.isr)}
    starts = [log_start_offset]
    for broker_id, directory_id in zip(partition.replicas, partition.directories, strict=True):
        follower, broker = partition.follower(broker_id), brokers.get(broker_id)
        if follower is None:
            continue
        if broker is None:
            is_known, lives = False, False
        else:
            is_known = follower.is_current and follower.broker_epoch == broker.epoch
            lives = _can_fetch(broker, directory_id)
        if lives or broker_id in may_lead:
            starts.append(follower.log_start_offset if is_known else UNKNOWN_OFFSET)
    return min(starts)


def _can_fetch(broker: BrokerRegistration, directory_id: DirectoryId) -> bool:
    """Return whether a replica of ``broker`` in that directory can fetch."""
    if broker.fenced or broker.is_impaired(directory_id):
        return False
    return broker.has_online_dir(directory_id)
