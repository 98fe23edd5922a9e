"""PURE. ``RaftCore``: Raft as a pure machine, in etcd's verbs.

The driver's part of the contract:

1. ``campaign`` and ``propose`` change the machine; ``ready`` hands out what there is to do, once;
2. term and vote are made durable first, then ``hard_state_persisted`` is called;
3. entries are made durable, then ``entries_persisted``;
4. what ``Ready.committed_offset`` covers may be applied and answered.

A vote counts, also the own one, when it is durable; an entry is committed when a majority of the
voters holds it durably and it is of the present term (Raft, section 5.4.2). So a new leader
begins its term with an entry of its own, and that commits all earlier ones.

No clock, no disk, no socket. With one voter there is nobody to send messages to.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from kraftjbod.core.errors import NotControllerError
from kraftjbod.core.ids import BrokerId


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a voter must never forget."""

    term: int = 0
    voted_for: BrokerId | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log; offsets count from 0 without gaps."""

    offset: int
    term: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Work for the driver, in the order of the fields."""

    hard_state: HardState | None
    """To be made durable before anything else, if there is one."""
    entries: tuple[Entry, ...]
    """To be appended and made durable."""
    committed_offset: int
    """Offset of the last committed entry; -1 before the first."""

    def __bool__(self) -> bool:
        return self.hard_state is not None or bool(self.entries)


class RaftCore:
    """One voter's view of the quorum."""

    def __init__(
        self,
        *,
        node_id: BrokerId,
        voters: Collection[BrokerId],
        hard_state: HardState,
        last_offset: int,
        committed_offset: int,
        first_payload_of_term: bytes,
    ) -> None:
        """
        :param last_offset: of the durable log; -1 if it is empty.
        :param committed_offset: what is known to be committed, from a snapshot; -1 if nothing is.
        :param first_payload_of_term: an entry without effect, for a new leader to begin with.
        """
        assert node_id in voters, (node_id, voters)
        self._node_id = node_id
        self._voters = frozenset(voters)
        self._hard_state = hard_state
        self._first_payload_of_term = first_payload_of_term
        self.role = Role.FOLLOWER
        #: Last entry of the log, durable or not.
        self.last_offset = last_offset
        #: Never falls.
        self.committed_offset = committed_offset
        #: First entry of the present term, if this voter leads it.
        self._term_start = -1
        self._votes: set[BrokerId] = set()
        #: Per voter, the last entry that it holds durably.
        self._durable = dict.fromkeys(voters, -1) | {node_id: last_offset}
        self._unwritten_state: HardState | None = None
        self._unwritten: list[Entry] = []

    def __repr__(self) -> str:
        return (
            f"<RaftCore {self._node_id} {self.role.value} term={self.term} "
            f"last={self.last_offset} committed={self.committed_offset}>"
        )

    @property
    def term(self) -> int:
        return self._hard_state.term

    # --- input -----------------------------------------------------------------------------------

    def campaign(self) -> None:
        """Stand for election in a new term."""
        self.role = Role.CANDIDATE
        self._votes.clear()
        self._hard_state = HardState(term=self.term + 1, voted_for=self._node_id)
        self._unwritten_state = self._hard_state

    def propose(self, payload: bytes) -> Entry:
        """The entry that ``payload`` became; it is not committed yet.

        :raises NotControllerError: unless this voter leads.
        """
        if self.role is not Role.LEADER:
            raise NotControllerError(f"node {self._node_id} is not the active controller")
        self.last_offset += 1
        entry = Entry(self.last_offset, self.term, payload)
        self._unwritten.append(entry)
        return entry

    def hard_state_persisted(self, hard_state: HardState) -> None:
        """``hard_state`` is durable, so the vote in it counts."""
        if self.role is Role.CANDIDATE and hard_state == self._hard_state:
            self._votes.add(self._node_id)
            if self._is_majority(len(self._votes)):
                self._lead()

    def entries_persisted(self, last_offset: int) -> None:
        """Entries up to ``last_offset`` are durable here."""
        assert last_offset <= self.last_offset, (last_offset, self.last_offset)
        self._durable[self._node_id] = last_offset
        self._advance_commit()

    # --- output ----------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """What there is to do since the last call; false if nothing is to be made durable."""
        ready = Ready(
            hard_state=self._unwritten_state,
            entries=tuple(self._unwritten),
            committed_offset=self.committed_offset,
        )
        self._unwritten_state = None
        self._unwritten.clear()
        return ready

    # --- inside ----------------------------------------------------------------------------------

    def _lead(self) -> None:
        self.role = Role.LEADER
        self._term_start = self.last_offset + 1
        self.propose(self._first_payload_of_term)

    def _advance_commit(self) -> None:
        held = sorted(self._durable.values(), reverse=True)
        by_majority = held[len(self._voters) // 2]
        if self.role is Role.LEADER and by_majority >= self._term_start:
            self.committed_offset = max(self.committed_offset, by_majority)

    def _is_majority(self, count: int) -> bool:
        return count > len(self._voters) // 2
