"""PURE. Check that a broker has followed this metadata log and not another one.

The logs may differ for three reasons:

* The controller's metadata directory was lost and formatted again: the log is empty, with a new id.
* The directory was restored from an old backup: the log ends before the offset the broker has.
* Controllers that had lost entries continued: the log has other entries at the same offsets.

In each case the controller is wrong and must not send metadata to that broker. A broker that names
no log accepts any log. The broker makes the same check (``broker/cluster/metadata_memory.py``,
ADR 51).
"""

from __future__ import annotations

from kraftjbod.core.errors import ForeignMetadataError
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest


def require_same_log(
    state: MetadataState, broker_id: BrokerId, metadata_log_id: Uuid | None, applied_offset: int
) -> None:
    """Require that a broker may have followed this controller's metadata log.

    :param metadata_log_id: the log that the broker follows; None accepts any log.
    :param applied_offset: the last offset that the broker has applied.
    :raises ForeignMetadataError: the logs differ, or this log ends before ``applied_offset``.
    """
    if metadata_log_id is None:
        return
    if metadata_log_id != state.metadata_log_id:
        raise ForeignMetadataError(
            f"Broker {broker_id} has followed metadata log {metadata_log_id}, and this controller "
            f"has {state.metadata_log_id}. {_WHAT_TO_DO}"
        )
    if applied_offset > state.offset:
        raise ForeignMetadataError(
            f"Broker {broker_id} has followed metadata log {metadata_log_id} up to offset "
            f"{applied_offset}, and here it ends at {state.offset}. {_WHAT_TO_DO}"
        )


def require_log(state: MetadataState, metadata_log_id: Uuid | None) -> None:
    """Require that the sender of a request follows this controller's metadata log, or names none.

    :raises ForeignMetadataError: the sender follows another log.
    """
    if metadata_log_id not in (None, state.metadata_log_id):
        raise ForeignMetadataError(
            f"The broker follows metadata log {metadata_log_id}, and this controller has "
            f"{state.metadata_log_id}. {_WHAT_TO_DO}"
        )


def require_same_entry(request: FetchMetadataRequest, epoch: int | None) -> None:
    """Require that the broker's last entry may be the entry at that offset of this log (KIP-595).

    :param epoch: epoch of the entry here; None if it is unknown or not committed.
    :raises ForeignMetadataError: the entry here has another epoch.
    """
    known = request.applied_metadata_epoch
    if request.metadata_log_id is None or None in (known, epoch) or known == epoch:
        return
    raise ForeignMetadataError(
        f"Broker {request.broker_id} has followed metadata log {request.metadata_log_id} up to an "
        f"entry of epoch {known} at offset {request.applied_metadata_offset}, and here that is one "
        f"of epoch {epoch}: it was decided by controllers that had lost the other. {_WHAT_TO_DO}"
    )


_WHAT_TO_DO = (
    "The controller's metadata directory was lost, formatted again, or restored from an old "
    "backup: put the right one back; docs/metadata-backup.md says how, and what else can be done."
)
