"""The ``quorum-state`` file with term and vote: format, and rejection of damage."""

from __future__ import annotations

import json

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.log.quorum_state import decode_quorum_state, encode_quorum_state
from kraftjbod.raft.machine.messages import HardState, node
from kraftjbod.raft.machine.voter_set import ReplicaKey

STATES = [
    HardState(),
    HardState(term=7, voted_for=node(3)),
    HardState(term=7, voted_for=ReplicaKey(BrokerId(3), DirectoryId(bytes(range(16))))),
    HardState(term=8, mute_before_term=7),
]


@pytest.mark.parametrize("state", STATES)
def test_quorum_state_with_any_flipped_bit_is_rejected_or_unchanged(state: HardState) -> None:
    """Another digit would be another term, or another vote in this term."""
    text = encode_quorum_state(state, 12, 7)
    assert decode_quorum_state(text) == (state, 12, 7)
    for bit in range(8 * len(text)):
        rotten = bytearray(text)
        rotten[bit // 8] ^= 1 << bit % 8
        try:
            # Without its checksum, the file is valid in the format from before the checksum.
            assert decode_quorum_state(bytes(rotten)) == (state, 12, 7)
        except CorruptRecordError:
            continue


def test_quorum_state_without_checksum_is_accepted() -> None:
    text = b'{"version": 1, "leaderEpoch": 5, "votedFor": 2}'
    assert decode_quorum_state(text) == (HardState(term=5, voted_for=node(2)), 0, -1)


def test_quorum_state_of_a_mute_replica_has_no_vote_for_older_software() -> None:
    found = json.loads(encode_quorum_state(HardState(term=8, mute_before_term=8), 3, 2))
    assert "votedFor" not in found, "it refuses to start then, and so does not vote"
