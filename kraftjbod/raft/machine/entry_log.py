"""PURE. ``EntryLog``: terms, voter sets and the newest payloads of a replica's log.

* The term of each entry after the base is known. Terms are stored as runs: a few numbers, however
  long the log is.
* The base is the entry before the first one on the disk, or -1. The newest snapshot ends at the
  base or later, so that a follower that lags a little receives entries instead of a snapshot.
* Payloads may be released, oldest first. They are read from the disk when they are needed again.
* The generation grows with each truncation or replacement of the log. A write of an earlier
  generation does not prove that an entry is durable: the entry may have been replaced and restored
  while the write was queued.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from kraftjbod.raft.machine.messages import Entry, EntryKind, SnapshotId, TermStart
from kraftjbod.raft.machine.voter_set import VoterSet

#: Maximum number of known terms before the base; followers that missed more are not checked.
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
        """Create the log of a replica at its start.

        :param base: the entry before the first one of ``entries``.
        :param voters: in force at ``base``.
        :param entries: all durable entries after ``base``.
        :param terms: starts of the known terms up to ``base``.
        """
        #: Number of truncations and resets.
        self.generation = 0
        self.reset(base, voters, terms)
        for entry in entries:
            self._add(entry)
        self.durable_offset = self.last_offset
        self._unwritten.clear()

    def reset(self, base: SnapshotId, voters: VoterSet, terms: Iterable[TermStart]) -> None:
        """Replace the whole log by a durable snapshot that ends at ``base``.

        :param voters: in force at ``base``.
        :param terms: starts of the known terms up to ``base``.
        """
        self.generation += 1
        self.base = self.snapshot = base
        self.last_offset = base.last_offset
        #: Last durable offset of the present log.
        self.durable_offset = base.last_offset
        #: First offset of each run of entries of one term; the first run is the base.
        self._run_starts = [base.last_offset]
        self._run_terms = [base.term]
        self._terms = deque(terms, MAX_TERMS)
        #: Voter sets, each with the offset from which on it is in force.
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
        """Voter set in force, committed or not."""
        return self._voter_sets[-1][1]

    @property
    def voters_offset(self) -> int:
        """Offset of the entry that put :attr:`voters` in force; that of the base if no later entry
        did.
        """
        return self._voter_sets[-1][0]

    @property
    def base_voters(self) -> VoterSet:
        """Voter set in force at the base."""
        return self._voter_sets[0][1]

    @property
    def former_voters(self) -> VoterSet:
        """Voter set before :attr:`voters`; the same set if no earlier one is known."""
        return self._voter_sets[max(0, len(self._voter_sets) - 2)][1]

    def voters_at(self, offset: int) -> VoterSet:
        """Return the voter set in force after the entry at ``offset``, which is the base or
        later.
        """
        return self._voter_sets[bisect_right(self._voter_sets, offset, key=_start_of) - 1][1]

    def term_at(self, offset: int) -> int | None:
        """Return the term of the entry at ``offset``; None before the base and after the end."""
        if not self.base.last_offset <= offset <= self.last_offset:
            return None
        return self._run_terms[self._run_of(offset)]

    @property
    def terms(self) -> tuple[TermStart, ...]:
        """Starts of the newest terms, at most ``MAX_TERMS``, up to the newest snapshot, including
        terms of entries that are not in memory any more.
        """
        starts = deque(self._terms, MAX_TERMS)
        if self.snapshot != self.base:
            self._add_term_starts(starts, self.snapshot.last_offset)
        return tuple(starts)

    def _add_term_starts(self, starts: deque[TermStart], last_offset: int) -> None:
        """Append the term starts of the entries from the base to ``last_offset`` to ``starts``."""
        run = bisect_right(self._run_starts, last_offset)
        for begun in map(TermStart, self._run_starts[:run], self._run_terms[:run]):
            if begun.offset >= 0 and not (starts and starts[-1].term == begun.term):
                starts.append(begun)

    def holds(self, offset: int, term: int) -> bool:
        return self.term_at(offset) == term

    def last_up_to(self, offset: int, term: int) -> SnapshotId:
        """Return the last entry at or before ``offset`` whose term is at most ``term``.

        A leader uses the result to find the common prefix of two logs. Logs that differ at
        ``offset`` agree nowhere after it, so a whole term is skipped at a time. Without such an
        entry the result is an offset before the base.
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
        """Return the entries from ``offset`` on, within both limits, but at least one if there is
        one.

        Returns None if the entries were released from memory, and ``[]`` after the end of the log.
        """
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

    def append_entries(self, entries: Sequence[Entry]) -> None:
        """Append ``entries``, after a truncation if they start before the end of the log."""
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
        """Remove the entries from ``offset`` on. ``offset`` must be after the base."""
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
        """Return the entries that must be persisted, each once.

        The caller keeps the present :attr:`generation`, and passes it to :meth:`note_durable` once
        the entries are durable.
        """
        taken = tuple(self._unwritten)
        self._unwritten.clear()
        return taken

    def note_durable(self, offset: int, generation: int) -> bool:
        """Record that entries up to and including ``offset`` are durable.

        Return False if that was known, or is outdated.

        Writes end in the order in which they were taken. So the first write of this generation also
        proves that the earlier entries that are still in the log are durable.
        """
        if offset <= self.durable_offset or generation != self.generation:
            return False
        self.durable_offset = offset
        return True

    def compact(self, snapshot: SnapshotId, start_offset: int) -> None:
        """Record a durable snapshot. The disk still holds some of the entries that it covers.

        No effect if the snapshot is not newer than the recorded one.

        :param start_offset: the first entry on the disk.
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
        """Release the payloads of entries before the offset ``before`` from memory."""
        for offset in range(self._kept_from, min(before, self.last_offset + 1)):
            del self._kept[offset]
            self._kept_from = offset + 1


def term_starts(entries: Iterable[Entry]) -> tuple[TermStart, ...]:
    """Return the first entry of each term in ``entries``, which are consecutive."""
    starts: list[TermStart] = []
    for entry in entries:
        if not starts or starts[-1].term != entry.term:
            starts.append(TermStart(entry.offset, entry.term))
    return tuple(starts)


def term_in(starts: Sequence[TermStart], offset: int) -> int | None:
    """Return the term of the entry at ``offset`` according to ``starts``; None before the first
    start.
    """
    at = bisect_right(starts, offset, key=_offset_of) - 1
    return None if at < 0 else starts[at].term


def _offset_of(start: TermStart) -> int:
    return start.offset


def _start_of(item: tuple[int, VoterSet]) -> int:
    return item[0]
