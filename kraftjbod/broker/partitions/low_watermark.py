"""PURE. Below which offset nobody shows records of a partition any more (KIP-107)."""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.broker.partitions.follower_state import UNKNOWN_OFFSET
from kraftjbod.broker.partitions.partition import Partition
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.metadata.registrations import BrokerRegistration


def low_watermark_of(
    partition: Partition, log_start_offset: int, brokers: Mapping[BrokerId, BrokerRegistration]
) -> int:
    """The least of the leader's ``log_start_offset`` and those of all who may lead next, or live.

    Who is in the maximal ISR, or eligible (KIP-966), may lead next, wherever it is now: it counts
    until metadata takes it out. Of the others those live whose broker is not fenced and whose
    directory is online and not impaired; the rest takes the start over before it joins the ISR.

    :return: UNKNOWN_OFFSET while one that counts has not fetched in this leader epoch.
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
            lives = _lives(broker, directory_id)
        if lives or broker_id in may_lead:
            starts.append(follower.log_start_offset if is_known else UNKNOWN_OFFSET)
    return min(starts)


def _lives(broker: BrokerRegistration, directory_id: DirectoryId) -> bool:
    """Whether a replica of that broker, there, fetches."""
    if broker.fenced or broker.is_impaired(directory_id):
        return False
    return broker.has_online_dir(directory_id)
