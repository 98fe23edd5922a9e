"""PURE. What the log is made of, and what those who hold it say to each other.

Messages are one-way: an answer is a message of its own, and each may be lost, repeated, late or
overtaken. All carry the sender's term.
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
    """The payload is a :class:`VoterSet`, in force from where it stands in the log."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log; offsets count from 0 without gaps."""

    offset: int
    term: int
    payload: bytes
    kind: EntryKind = EntryKind.DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a voter must never forget."""

    term: int = 0
    voted_for: ReplicaKey | None = None
    mute_before_term: int = 0
    """It gave up a damaged end of its log, which may have been counted for what is committed. It
    neither votes nor stands until its log has an entry of that term or a later one; 0: it may."""


class SnapshotId(NamedTuple):
    """The state up to and with ``last_offset``, whose entry is of ``term``."""

    last_offset: int
    term: int


class TermStart(NamedTuple):
    """The first entry of ``term`` in a log; with the first one of a list, the first that is known.

    Kafka keeps the same in ``leader-epoch-checkpoint``.
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
    """Would you vote for me in the term after this? Promises nothing (KIP-996)."""

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
    """The leader wants it so; whoever hears it well may vote all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply(Message):
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Message):
    """Entries after ``previous``; without any it says that the leader lives."""

    previous_offset: int
    previous_term: int
    entries: tuple[Entry, ...] = ()
    committed_offset: int = -1
    """May be beyond what the receiver holds; -1 if nothing is known to be committed."""
    sent_tick: int = -1
    """Tick of the leadership at which it was sent; -1 from older software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply(Message):
    durable_offset: int
    """Up to here the sender holds durably what the leader of this term holds."""
    sent_tick: int = -1
    """The latest ``Append.sent_tick`` that the sender received in this term; -1 if none did say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRejected(Message):
    previous_offset: int
    """Of the Append that did not fit."""
    hint: SnapshotId
    """The sender's last entry that may match: no later, and of no later term, than that."""
    sent_tick: int = -1
    """As in :class:`AppendReply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSlice(Message):
    snapshot: SnapshotId
    position: int
    data: bytes
    is_last: bool
    voters: bytes = b""
    """In force at its end, encoded; empty if no entry of the log has named them."""
    terms: tuple[TermStart, ...] = ()
    """Of the log that the snapshot replaces, oldest first; empty from older software."""
    crc: int | None = None
    """Of ``voters`` and the whole payload, with the last slice; None from older software."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReply(Message):
    snapshot: SnapshotId
    next_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Message):
    """The leader of this term hands it over: stand for election at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe(Message):
    """I hold a copy and hear of no leader: if you lead, send me the log. The term says nothing."""


class ReadEntries(NamedTuple):
    """A wish of the leader: entries that are not in memory any more."""

    peer: ReplicaKey
    term: int
    from_offset: int


class ReadSnapshot(NamedTuple):
    """A wish of the leader: a slice of a snapshot."""

    peer: ReplicaKey
    term: int
    snapshot: SnapshotId
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the driver, in the order of the fields."""

    hard_state: HardState | None = None
    """To be made durable before anything else, the messages included."""
    messages: tuple[Message, ...] = ()
    """They promise nothing that is not durable once the hard state is."""
    entries: tuple[Entry, ...] = ()
    """To be appended and made durable; first cut off what the log holds from the first one on."""
    generation: int = 0
    """Of ``entries``, to be handed back with them (:attr:`EntryLog.generation`)."""
    slices: tuple[SnapshotSlice, ...] = ()
    """To be written; the last one makes the snapshot take the place of the whole log."""
    reads: tuple[ReadEntries | ReadSnapshot, ...] = ()
    """To be read some time, and handed in."""
    committed_offset: int = -1
    """Of the last entry that may be applied, which is durable here; -1 before the first."""
    has_committed: bool = False
    """``committed_offset`` has grown since the last time."""

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
    """The way to the other replicas."""

    def send(self, message: Message) -> None:
        """To ``message.to``, some time or never; does not wait."""
        ...


def node(node_id: int) -> ReplicaKey:
    """A replica that is known by its node alone."""
    return ReplicaKey(BrokerId(node_id))
