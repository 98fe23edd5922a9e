"""PURE. ``EntryLog``: what a machine knows of its log: terms, sets of voters, the newest payloads.

* It knows the term of each entry from its base on, as runs: a few numbers, however long it is.
* The base is the entry before those that the disk still holds, or -1. The newest snapshot ends at
  the base or later, so that a follower that lags a little gets entries and no snapshot.
* Payloads may be released, oldest first; what is asked for then has to be read from the disk.
* Its generation grows with each truncation. A write that began in an earlier one proves nothing:
  the same entry may have been replaced and restored since, and both writes wait behind that one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from kraftjbod.raft.machine.messages import Entry, EntryKind, SnapshotId, TermStart
from kraftjbod.raft.machine.voter_set import VoterSet

#: Of the terms before the base. A follower that has missed more elections is not checked.
MAX_TERMS: Final = 200


class EntryLog:
    def __init__(
        self,
        *,
        base: SnapshotId,
        voters: VoterSet,
        entries: Iterable[Entry],
        terms: Iterable[TermStart] = (),
    ) -> None:
        """
        :param voters: in force at ``base``.
        :param entries: all from after ``base``; they are durable.
        :param terms: of entries up to ``base``, as far as they are known.
        """
        #: How often entries were cut off.
        self.generation = 0
        self.reset(base, voters, terms)
        for entry in entries:
            self._add(entry)
        self.durable_offset = self.last_offset
        self._unwritten.clear()

    def reset(self, base: SnapshotId, voters: VoterSet, terms: Iterable[TermStart]) -> None:
        """A durable snapshot that ends at ``base`` took the place of everything."""
        self.generation += 1
        self.base = self.snapshot = base
        self.last_offset = base.last_offset
        #: What is durable here, of what the log holds now.
        self.durable_offset = base.last_offset
        #: First offset of each run of entries of one term; the first run is the base.
        self._run_starts = [base.last_offset]
        self._run_terms = [base.term]
        self._terms = deque(terms, MAX_TERMS)
        #: By the offset from which on each is in force.
        self._voter_sets: list[tuple[int, VoterSet]] = [(base.last_offset, voters)]
        #: The newest entries by offset, without gaps, from ``_kept_from`` on.
        self._kept: dict[int, Entry] = {}
        self._kept_from = base.last_offset + 1
        self._unwritten: list[Entry] = []

    # --- questions -------------------------------------------------------------------------------

    @property
    def last_term(self) -> int:
        return self._run_terms[-1]

    @property
    def voters(self) -> VoterSet:
        """In force, whether committed or not."""
        return self._voter_sets[-1][1]

    @property
    def voters_offset(self) -> int:
        """Of the entry that put :attr:`voters` in force."""
        return self._voter_sets[-1][0]

    @property
    def base_voters(self) -> VoterSet:
        """In force at the base."""
        return self._voter_sets[0][1]

    @property
    def former_voters(self) -> VoterSet:
        """In force before :attr:`voters`; the same if nothing is known of others."""
        return self._voter_sets[max(0, len(self._voter_sets) - 2)][1]

    def voters_at(self, offset: int) -> VoterSet:
        """Those in force once ``offset`` was appended; it is no earlier than the base."""
        return self._voter_sets[bisect_right(self._voter_sets, offset, key=_start_of) - 1][1]

    def term_at(self, offset: int) -> int | None:
        """None before the base and after the end."""
        if not self.base.last_offset <= offset <= self.last_offset:
            return None
        return self._run_terms[self._run_of(offset)]

    @property
    def terms(self) -> tuple[TermStart, ...]:
        """Where terms begin in the entries up to the newest snapshot, as far as that is known."""
        starts = deque(self._terms, MAX_TERMS)
        if self.snapshot != self.base:
            self._add_term_starts(starts, self.snapshot.last_offset)
        return tuple(starts)

    def _add_term_starts(self, starts: deque[TermStart], last_offset: int) -> None:
        """Add those of the entries from the base to ``last_offset`` to ``starts``."""
        run = bisect_right(self._run_starts, last_offset)
        for begun in map(TermStart, self._run_starts[:run], self._run_terms[:run]):
            if begun.offset >= 0 and not (starts and starts[-1].term == begun.term):
                starts.append(begun)

    def holds(self, offset: int, term: int) -> bool:
        return self.term_at(offset) == term

    def last_up_to(self, offset: int, term: int) -> SnapshotId:
        """The last entry at ``offset`` or before whose term is ``term`` at most.

        Two logs with different entries at ``offset`` agree nowhere after it, so that a whole term
        is stepped over at a time. The entry before the base if there is none.
        """
        at = min(offset, self.last_offset)
        run = self._run_of(at)
        while run >= 0 and self._run_terms[run] > term:
            at = self._run_starts[run] - 1
            run -= 1
        if run < 0:
            return SnapshotId(max(-1, min(at, self.base.last_offset - 1)), 0)
        return SnapshotId(at, self._run_terms[run])

    def entries_from(self, offset: int, max_bytes: int, max_entries: int) -> list[Entry] | None:
        """At least one, if there is one; None if they are not in memory any more."""
        if offset > self.last_offset:
            return []
        if offset < self._kept_from:
            return None
        found: list[Entry] = []
        size_bytes = 0
        for at in range(offset, min(offset + max_entries, self.last_offset + 1)):
            entry = self._kept[at]
            size_bytes += len(entry.payload)
            if found and size_bytes > max_bytes:
                break
            found.append(entry)
        return found

    # --- changes ---------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """They continue the log, or take the place of its end."""
        if entries and entries[0].offset <= self.last_offset:
            self._truncate(entries[0].offset)
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        assert entry.offset == self.last_offset + 1, (entry.offset, self.last_offset)
        self.last_offset = entry.offset
        if entry.term != self._run_terms[-1]:
            self._run_starts.append(entry.offset)
            self._run_terms.append(entry.term)
        if entry.kind is EntryKind.VOTERS:
            self._voter_sets.append((entry.offset, VoterSet.decode(entry.payload)))
        self._kept[entry.offset] = entry
        self._unwritten.append(entry)

    def _truncate(self, offset: int) -> None:
        """Forget entries from ``offset`` on, which is after the base."""
        assert offset > self.base.last_offset, (offset, self.base)
        self.generation += 1
        for gone in range(offset, self.last_offset + 1):
            self._kept.pop(gone, None)
        self._kept_from = min(self._kept_from, offset)
        self.last_offset = offset - 1
        self.durable_offset = min(self.durable_offset, self.last_offset)
        while self._run_starts[-1] >= offset:
            self._run_starts.pop()
            self._run_terms.pop()
        while self._voter_sets[-1][0] >= offset:
            self._voter_sets.pop()
        while self._unwritten and self._unwritten[-1].offset >= offset:
            self._unwritten.pop()

    def take_unwritten(self) -> tuple[Entry, ...]:
        """Entries to be made durable, once; they are of the present generation."""
        taken = tuple(self._unwritten)
        self._unwritten.clear()
        return taken

    def note_durable(self, offset: int, generation: int) -> bool:
        """Return whether that is news.

        Writes end in the order in which they were taken, so the first one of this generation also
        proves those before it that were not cut off.
        """
        if offset <= self.durable_offset or generation != self.generation:
            return False
        self.durable_offset = offset
        return True

    def compact(self, snapshot: SnapshotId, start_offset: int) -> None:
        """``snapshot`` is durable; of the entries that it covers the disk holds the last ones.

        :param start_offset: the first entry that the disk holds.
        """
        if snapshot.last_offset <= self.snapshot.last_offset:
            return
        assert self.holds(*snapshot), (snapshot, self.last_offset, self.last_term)
        self.snapshot = snapshot
        at = min(start_offset - 1, snapshot.last_offset)
        if at > self.base.last_offset:
            self._move_base(SnapshotId(at, self._run_terms[self._run_of(at)]))

    def _run_of(self, offset: int) -> int:
        return bisect_right(self._run_starts, offset) - 1

    def _move_base(self, base: SnapshotId) -> None:
        self.release(base.last_offset + 1)
        voters = self.voters_at(base.last_offset)
        self._add_term_starts(self._terms, base.last_offset)
        run = self._run_of(base.last_offset) + 1
        self._run_starts = [base.last_offset, *self._run_starts[run:]]
        self._run_terms = [base.term, *self._run_terms[run:]]
        later = [item for item in self._voter_sets if item[0] > base.last_offset]
        self._voter_sets = [(base.last_offset, voters), *later]
        self.base = base

    def release(self, before: int) -> None:
        """Payloads of entries before ``before`` may go from memory."""
        for offset in range(self._kept_from, min(before, self.last_offset + 1)):
            del self._kept[offset]
            self._kept_from = offset + 1


def term_starts(entries: Iterable[Entry]) -> tuple[TermStart, ...]:
    """Where terms begin in ``entries``, which follow each other."""
    starts: list[TermStart] = []
    for entry in entries:
        if not starts or starts[-1].term != entry.term:
            starts.append(TermStart(entry.offset, entry.term))
    return tuple(starts)


def term_in(starts: Sequence[TermStart], offset: int) -> int | None:
    """The term of the entry at ``offset``; None before the first start."""
    at = bisect_right(starts, offset, key=_offset_of) - 1
    return None if at < 0 else starts[at].term


def _offset_of(start: TermStart) -> int:
    return start.offset


def _start_of(item: tuple[int, VoterSet]) -> int:
    return item[0]
