"""PURE. A leader's request to change the ISR, and the meaning of the controller's refusal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicIdPartition
from kraftjbod.protocol.rpc_messages import PartitionIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A requested ISR and the state that the request is based on (fields of AlterPartition)."""

    isr: tuple[BrokerId, ...]
    isr_broker_epochs: tuple[BrokerEpoch, ...]
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    metadata_offset: int = -1
    """The leader's metadata offset when it created the request."""

    def partition_request(self, key: TopicIdPartition) -> PartitionIsr:
        """Return the AlterPartition part that requests this change."""
        return PartitionIsr(
            topic_id=key.topic_id,
            partition=key.partition,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            isr=self.isr,
            isr_broker_epochs=self.isr_broker_epochs,
            metadata_offset=self.metadata_offset,
        )


class IsrVerdict(Enum):
    """The consequence of a refused ISR change."""

    RETRY = "retry"
    """Send the same change again later."""
    ROLLED_BACK = "rolled_back"
    """The change is dropped and the ISR stays unchanged."""
    AWAIT_METADATA = "await_metadata"
    """The controller has newer metadata: the change stays pending until this metadata arrives."""
    STALE = "stale"
    """The change was no longer pending."""


#: The request may have been late, or an earlier attempt may have been committed with its response
#: lost.
_AWAIT_METADATA_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        # The change was committed, and the same record made another broker the leader.
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


def verdict_of(code: ErrorCode) -> IsrVerdict:
    """Return the consequence of a partition's error in the AlterPartition response, for a change
    that is still pending. Never STALE.
    """
    if code in _AWAIT_METADATA_CODES:
        return IsrVerdict.AWAIT_METADATA
    return IsrVerdict.ROLLED_BACK if code == ErrorCode.INELIGIBLE_REPLICA else IsrVerdict.RETRY
