"""PURE. Entries of the metadata log, and the messages between its replicas.

Messages are one-way, and a reply is a message too. Each may be lost, repeated, delayed or
reordered. All carry the sender's term.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from kraftjbod.core.ids import BrokerId
from kraftjbod.raft.machine.voter_set import ReplicaKey


class EntryKind(Enum):
    DATA = 0
    VOTERS = 1
    """The payload is a :class:`VoterSet`, in force from this entry on."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. Offsets start at 0 and have no gaps."""

    offset: int
    term: int
    payload: bytes
    kind: EntryKind = EntryKind.DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """Term and vote of a replica, which must be durable before a message depends on them."""

    term: int = 0
    voted_for: ReplicaKey | None = None
    mute_before_term: int = 0
    """The replica dropped a damaged end of its log, whose entries may have been counted as
    committed. It does not vote or stand until its log has an entry of this term or later. 0: not
    mute."""


class SnapshotId(NamedTuple):
    """A snapshot of the state up to and including ``last_offset``, whose entry has ``term``."""

    last_offset: int
    term: int


class TermStart(NamedTuple):
    """Term and offset of the first entry of that term in a log. Kafka stores the same in
    ``leader-epoch-checkpoint``.

    If a log lacks its beginning, the first element of its list of terms is the first entry that is
    known.
    """

    offset: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    sender: ReplicaKey
    to: ReplicaKey
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVote(Message):
    """Asks whether the receiver would vote for the sender in the next term (KIP-996).

    Neither replica changes its term or vote.
    """

    last_offset: int
    last_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteReply(Message):
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote(Message):
    last_offset: int
    last_term: int
    is_transfer: bool = False
    """The leader requested this candidacy. Voters may grant it although they hear the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply(Message):
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Message):
    """Entries that follow the entry ``previous``. Without entries the message is a heartbeat."""

    previous_offset: int
    previous_term: int
    entries: tuple[Entry, ...] = ()
    committed_offset: int = -1
    """May be greater than the receiver's last offset; -1 if none is known."""
    sent_tick: int = -1
    """Tick of the leadership at sending; -1 from older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply(Message):
    durable_offset: int
    """Up to this offset the sender durably has the same entries as the leader of this term."""
    sent_tick: int = -1
    """The latest ``Append.sent_tick`` received in this term; -1 if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRejected(Message):
    previous_offset: int
    """That of the rejected Append."""
    hint: SnapshotId
    """The sender's last entry that may match: not later and of no later term than ``previous``."""
    sent_tick: int = -1
    """The same as in :class:`AppendReply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSlice(Message):
    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool
    voters: bytes = b""
    """The encoded set in force at the snapshot's end; empty if no entry names the voters."""
    terms: tuple[TermStart, ...] = ()
    """Term starts of the replaced log, oldest first; empty from older versions."""
    crc: int | None = None
    """CRC of ``voters`` and the whole payload, in the last slice; None from older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReply(Message):
    snapshot: SnapshotId
    next_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Message):
    """The leader of this term transfers the leadership: the receiver stands for election at
    once.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe(Message):
    """Request for the log, from a replica that knows no leader. The term has no meaning."""


class ReadEntries(NamedTuple):
    """Request to the driver: read entries for a peer that are not in memory any more."""

    peer: ReplicaKey
    term: int
    from_offset: int


class ReadSnapshot(NamedTuple):
    """Request to the driver: read a slice of a snapshot for a peer."""

    peer: ReplicaKey
    term: int
    snapshot: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work that the driver has to do, in the order of the fields."""

    hard_state: HardState | None = None
    """To be persisted before all other work, including the messages."""
    messages: tuple[Message, ...] = ()
    """Messages to send. They depend on nothing but a durable hard state."""
    entries: tuple[Entry, ...] = ()
    """To be appended and persisted, after the log was truncated before the first entry."""
    generation: int = 0
    """Generation of ``entries``, to be returned with them (:attr:`EntryLog.generation`)."""
    slices: tuple[SnapshotSlice, ...] = ()
    """To be written. After the last slice the snapshot replaces the whole log."""
    reads: tuple[ReadEntries | ReadSnapshot, ...] = ()
    """To be read, at any time; the results are passed to the machine."""
    committed_offset: int = -1
    """Last offset that may be applied, which is durable here; -1 before the first."""
    has_committed: bool = False
    """``committed_offset`` has grown since the last call."""

    def __bool__(self) -> bool:
        return bool(
            self.hard_state is not None
            or self.messages
            or self.entries
            or self.slices
            or self.reads
            or self.has_committed
        )


class RaftTransport(Protocol):
    """Sends messages to the other replicas."""

    def send(self, message: Message) -> None:
        """Send ``message`` to ``message.to`` later, or drop it. The call does not wait."""
        ...


def node(node_id: int) -> ReplicaKey:
    """Return the key of a replica of a static quorum, which is known by its node id alone."""
    return ReplicaKey(BrokerId(node_id))
