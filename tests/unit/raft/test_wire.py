"""Conversion of Raft messages to and from RPC messages."""

from __future__ import annotations

from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.protocol.rpc_codec import decode_request, encode_request
from kraftjbod.protocol.rpc_quorum_messages import QuorumMessagesRequest
from kraftjbod.raft import wire
from kraftjbod.raft.machine import messages as m
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

BETWEEN = {"sender": m.node(1), "to": m.node(2), "term": 3}
ENTRIES = (m.Entry(4, 2, b"data"), m.Entry(5, 3, b"{}", m.EntryKind.VOTERS))
MESSAGES = (
    m.PreVote(**BETWEEN, last_offset=-1, last_term=0),
    m.PreVoteReply(**BETWEEN, granted=True),
    m.Vote(**BETWEEN, last_offset=5, last_term=2, is_transfer=True),
    m.VoteReply(**BETWEEN, granted=False),
    m.Append(**BETWEEN, previous_offset=3, previous_term=2, entries=ENTRIES, committed_offset=4),
    m.AppendReply(**BETWEEN, durable_offset=5),
    m.AppendRejected(**BETWEEN, previous_offset=9, hint=m.SnapshotId(7, 2)),
    m.SnapshotSlice(
        **BETWEEN,
        snapshot=m.SnapshotId(9, 2),
        position=5,
        data=b"state",
        is_last=True,
        terms=(m.TermStart(0, 1), m.TermStart(4, 2)),
    ),
    m.SnapshotReply(**BETWEEN, snapshot=m.SnapshotId(9, 2), next_position=10),
    m.TimeoutNow(**BETWEEN),
    m.Observe(**BETWEEN),
)


def test_wire_converts_each_kind_of_message_without_loss() -> None:
    assert {type(message).__name__ for message in MESSAGES} == {
        kind.__name__ for kind in m.Message.__subclasses__()
    }
    request = QuorumMessagesRequest(
        cluster_id="c",
        sender_id=1,
        sender_directory_id=DirectoryId(b"d" * 16),
        receiver_id=2,
        messages=tuple(map(wire.body_of, MESSAGES)),
    )
    received = decode_request(encode_request(7, request)[4:]).body
    assert isinstance(received, QuorumMessagesRequest)
    known_as = VoterSet.of_keys(map(m.node, (1, 2))).known_as
    assert tuple(wire.messages_in(received, known_as)) == MESSAGES
    # Once the log names the voters, their directory ids are compared as well.
    (named, *_) = wire.messages_in(received, VoterSet().known_as)
    assert named.sender == ReplicaKey(BrokerId(1), received.sender_directory_id)


def test_wire_size_includes_payloads_of_entries_and_data_of_a_snapshot_slice() -> None:
    append = m.Append(
        **BETWEEN,
        previous_offset=3,
        previous_term=2,
        entries=(m.Entry(4, 2, bytes(1000)), m.Entry(5, 3, bytes(2000))),
        committed_offset=4,
    )
    part = m.SnapshotSlice(
        **BETWEEN, snapshot=m.SnapshotId(9, 2), position=0, data=bytes(3000), is_last=False
    )
    for message in (append, part):
        assert 3000 <= wire.size_bytes_of(message) < 4000
    assert 0 < wire.size_bytes_of(m.TimeoutNow(**BETWEEN)) < 1000
