"""PURE. A leader's wish for another in-sync set, and what its refusal comes to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, TopicIdPartition
from kraftjbod.protocol.rpc_messages import PartitionIsr


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """A wish for another ISR, and the state that it is based on (AlterPartition's fields)."""

    isr: tuple[BrokerId, ...]
    isr_broker_epochs: tuple[BrokerEpoch, ...]
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    metadata_offset: int = -1
    """What the leader knew when it made the wish."""

    def asked_of(self, key: TopicIdPartition) -> PartitionIsr:
        """The part of the request that asks for it."""
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
    """What a refused ISR change comes to."""

    RETRY = "retry"
    """Send the same change again, later."""
    ROLLED_BACK = "rolled_back"
    """The change is forgotten; the ISR is what it was."""
    AWAIT_METADATA = "await_metadata"
    """The controller knows more than we do: the change stays pending until metadata comes."""
    STALE = "stale"
    """That change was no longer pending."""


#: The request may have been late, or an earlier try of it may have been committed unheard.
_AWAIT_METADATA_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        # The change was made, and another broker leads by the same record.
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


def verdict_of(code: ErrorCode) -> IsrVerdict:
    """What it means for a wish that is still pending that the controller refused it so."""
    if code in _AWAIT_METADATA_CODES:
        return IsrVerdict.AWAIT_METADATA
    return IsrVerdict.ROLLED_BACK if code == ErrorCode.INELIGIBLE_REPLICA else IsrVerdict.RETRY
