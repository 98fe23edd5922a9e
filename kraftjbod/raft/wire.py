"""PURE. Converts Raft messages to bodies of the RPC and back. Both have the same field names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from kraftjbod.protocol.rpc_quorum_messages import (
    AppendBody,
    QuorumMessageBody,
    QuorumMessagesRequest,
    SnapshotSliceBody,
    quorum_message_body,
)
from kraftjbod.raft.machine import messages as m
from kraftjbod.raft.machine.voter_set import ReplicaKey

_KINDS: Final[dict[str, type[m.Message]]] = {
    kind.__name__: kind
    for kind in (
        m.PreVote,
        m.PreVoteReply,
        m.Vote,
        m.VoteReply,
        m.Append,
        m.AppendReply,
        m.AppendRejected,
        m.SnapshotSlice,
        m.SnapshotReply,
        m.TimeoutNow,
        m.Observe,
    )
}
_ENVELOPE: Final = frozenset({"sender", "to", "entries"})


def body_of(message: m.Message) -> QuorumMessageBody:
    fields: dict[str, Any] = {
        name: getattr(message, name)
        for name in message.__dataclass_fields__
        if name not in _ENVELOPE
    }
    fields["kind"] = type(message).__name__
    if isinstance(message, m.Append):
        fields["entries"] = [
            {"offset": e.offset, "term": e.term, "payload": e.payload, "kind": e.kind.value}
            for e in message.entries
        ]
    return quorum_message_body(fields)


def size_bytes_of(message: m.Message) -> int:
    """Return the approximate size of ``message`` on the wire, in bytes."""
    if isinstance(message, m.Append):
        return 100 + sum(len(entry.payload) + 50 for entry in message.entries)
    return 100 + (len(message.data) if isinstance(message, m.SnapshotSlice) else 0)


def messages_in(
    request: QuorumMessagesRequest, known_as: Callable[[ReplicaKey], ReplicaKey]
) -> Sequence[m.Message]:
    """Return the messages of ``request``.

    :param known_as: returns the key by which the voters in force name a replica.
    """
    sender = known_as(ReplicaKey(request.sender_id, request.sender_directory_id))
    to = known_as(ReplicaKey(request.receiver_id, request.receiver_directory_id))
    return [_message(body, sender, to) for body in request.messages]


def _message(body: QuorumMessageBody, sender: ReplicaKey, to: ReplicaKey) -> m.Message:
    fields: dict[str, Any] = {
        name: getattr(body, name) for name in type(body).model_fields if name != "kind"
    }
    for name in ("snapshot", "hint"):
        if name in fields:
            fields[name] = m.SnapshotId(*fields[name])
    if isinstance(body, SnapshotSliceBody):
        fields["terms"] = tuple(m.TermStart(*begun) for begun in body.terms)
    if isinstance(body, AppendBody):
        fields["entries"] = tuple(
            m.Entry(e.offset, e.term, e.payload, m.EntryKind(e.kind)) for e in body.entries
        )
    return _KINDS[body.kind](sender=sender, to=to, **fields)
