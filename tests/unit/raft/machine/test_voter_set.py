"""``VoterSet`` and its encoding as an entry of the log."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.machine.messages import node
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet


def test_voter_set_is_decoded_as_encoded() -> None:
    directory = DirectoryId(b"a directory's id")
    found = VoterSet(
        (Voter(ReplicaKey(BrokerId(1), directory), ("CONTROLLER://a:1", "SSL://b:2")),)
    )
    assert VoterSet.decode(found.encode()) == found
    assert VoterSet.decode(VoterSet.of_keys([node(3)]).encode()) == VoterSet.of_keys([node(3)])


def test_voter_set_distinguishes_directories_of_a_node() -> None:
    here, there = (ReplicaKey(BrokerId(1), DirectoryId(bytes([i] * 16))) for i in (65, 66))
    voters = VoterSet.of_keys([here, node(2), node(3)])
    assert here in voters
    assert there not in voters
    assert not voters.is_majority([there, node(2)])
    assert voters.is_majority([here, node(2)])


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"{}", b'{"version": 9, "voters": []}', b'{"version":0,"voters":[1]}']
)
def test_voter_set_decode_rejects_other_payloads(payload: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="no set of voters"):
        VoterSet.decode(payload)
