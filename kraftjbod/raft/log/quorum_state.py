"""PURE. ``quorum-state``: term, vote, log end and committed offset, with a checksum.

The checksum is needed because a changed digit would be another term or voter, and thus a second
vote. A file of an older version without a checksum is accepted.

The file of a mute replica has no field for a vote, so that older versions, which do not know mute
replicas, refuse it instead of voting.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

from kraftjbod.core.errors import CorruptRecordError, InvalidUuidText
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.machine.messages import HardState
from kraftjbod.raft.machine.voter_set import ReplicaKey


class QuorumState(NamedTuple):
    """Content of ``quorum-state``. Files of older versions lack some values."""

    hard_state: HardState = HardState()
    log_end: int = 0
    """The log was durable up to this offset (exclusive)."""
    committed_offset: int = -1
    """A lower bound of the committed offset."""


def encode_quorum_state(hard_state: HardState, log_end: int, committed_offset: int) -> bytes:
    key = hard_state.voted_for
    fields: dict[str, Any] = {"version": 1, "leaderEpoch": hard_state.term}
    if hard_state.mute_before_term:
        assert key is None, hard_state
        fields["muteBeforeEpoch"] = hard_state.mute_before_term
    else:
        fields["votedFor"] = None if key is None else key.node_id
    if key is not None and key.directory_id is not None:
        fields["votedDirectoryId"] = str(key.directory_id)
    fields["logEndOffset"] = log_end
    fields["committedOffset"] = committed_offset
    return json.dumps({**fields, "crc": _crc(fields)}).encode()


def decode_quorum_state(text: bytes) -> QuorumState:
    """Parse the content of ``quorum-state``.

    :raises CorruptRecordError: ``text`` is damaged.
    """
    try:
        found = json.loads(text)
        crc = found.pop("crc", None)
        if crc is not None and crc != _crc(found):
            raise CorruptRecordError("its check sum does not match")
        term, log_end = int(found["leaderEpoch"]), int(found.get("logEndOffset", 0))
        committed_offset = int(found.get("committedOffset", -1))
        if "muteBeforeEpoch" in found:
            mute = HardState(term=term, mute_before_term=int(found["muteBeforeEpoch"]))
            return QuorumState(mute, log_end, committed_offset)
        voted_for, directory = found["votedFor"], found.get("votedDirectoryId")
        key = None
        if voted_for is not None:
            known = None if directory is None else DirectoryId.parse(directory)
            key = ReplicaKey(BrokerId(int(voted_for)), known)
        return QuorumState(HardState(term=term, voted_for=key), log_end, committed_offset)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidUuidText) as e:
        raise CorruptRecordError(str(e)) from e


def _crc(fields: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields).encode())
