"""``EntryLog`` compared with a list of entries."""

from __future__ import annotations

import random

from kraftjbod.raft.machine.entry_log import EntryLog, term_starts
from kraftjbod.raft.machine.messages import Entry, EntryKind, SnapshotId, node
from kraftjbod.raft.machine.voter_set import VoterSet
from tests.each_case import each_case

FIRST = VoterSet.of_keys([node(1)])


def _entry(rng: random.Random, offset: int, term: int) -> Entry:
    if rng.random() < 0.3:
        voters = VoterSet.of_keys(map(node, rng.sample(range(9), 3)))
        return Entry(offset, term, voters.encode(), EntryKind.VOTERS)
    return Entry(offset, term, b"%d" % rng.randrange(100))


def _check(log: EntryLog, model: list[Entry], base: SnapshotId, kept_from: int) -> None:
    last = model[-1].offset if model else base.last_offset
    assert (log.last_offset, log.base) == (last, base)
    terms = {base.last_offset: base.term} | {entry.offset: entry.term for entry in model}
    for offset in range(base.last_offset - 1, last + 2):
        assert log.term_at(offset) == terms.get(offset)
    for offset in range(base.last_offset + 1, last + 1):
        found = log.entries_from(offset, 10**6, 10**6)
        wanted = model[offset - base.last_offset - 1 :]
        assert found == (wanted if offset >= kept_from else None)
    for term in range(1, log.last_term + 2):
        fitting = [at for at, its in terms.items() if its <= term]
        if fitting:
            assert log.last_up_to(last + 5, term) == (max(fitting), terms[max(fitting)])


@each_case("seed", range(20))
def test_entry_log_equals_a_list_of_entries_after_random_changes(seed: int) -> None:
    rng = random.Random(seed)
    base = snapshot = SnapshotId(-1, 0)
    log = EntryLog(base=base, voters=FIRST, entries=())
    every: list[Entry] = []
    term, kept_from = 1, 0
    for _ in range(60):
        dice = rng.random()
        if dice < 0.6:
            term += rng.random() < 0.3
            at = rng.randint(snapshot.last_offset + 1, log.last_offset + 1)
            at = at if dice < 0.15 else log.last_offset + 1
            new = [_entry(rng, at + i, term) for i in range(rng.randint(1, 3))]
            every[at:] = new
            kept_from = min(kept_from, at)
            log.append_entries(new)
        elif dice < 0.75:
            before = rng.randint(0, log.last_offset + 1)
            log.release(before)
            kept_from = max(kept_from, before)
        elif snapshot.last_offset < log.last_offset:
            last = rng.randint(snapshot.last_offset + 1, log.last_offset)
            snapshot, start = SnapshotId(last, every[last].term), rng.randint(0, last + 5)
            in_force = log.voters_at(last)
            log.compact(snapshot, start)
            assert log.voters_at(last) == in_force
            if base.last_offset < start - 1:
                at = min(start - 1, last)
                base = SnapshotId(at, every[at].term)
                kept_from = max(kept_from, at + 1)
        _check(log, every[base.last_offset + 1 :], base, kept_from)
        assert log.snapshot == snapshot
        assert log.terms == term_starts(every[: snapshot.last_offset + 1])
        sets = [entry for entry in every if entry.kind is EntryKind.VOTERS]
        assert not sets or log.voters == VoterSet.decode(sets[-1].payload)


def test_entry_log_truncation_restores_the_former_voters() -> None:
    then = VoterSet.of_keys([node(1), node(2)])
    log = EntryLog(base=SnapshotId(-1, 0), voters=FIRST, entries=[Entry(0, 1, b"a")])
    log.append_entries([Entry(1, 1, then.encode(), EntryKind.VOTERS)])
    assert (log.voters, log.former_voters, log.voters_offset) == (then, FIRST, 1)
    log.append_entries([Entry(1, 2, b"instead")])
    assert (log.voters, log.voters_offset) == (FIRST, -1)


def test_entry_log_write_of_an_earlier_generation_makes_no_entry_durable() -> None:
    """An entry is restored while its first write is running, and a second write replaces it."""
    log = EntryLog(base=SnapshotId(-1, 0), voters=FIRST, entries=[Entry(0, 1, b"a")])
    log.append_entries([Entry(1, 1, b"b")])
    assert log.take_unwritten() == (Entry(1, 1, b"b"),)
    first = log.generation
    log.append_entries([Entry(1, 2, b"instead")])
    log.append_entries([Entry(1, 1, b"b")])
    assert not log.note_durable(1, first)
    assert not log.note_durable(1, first + 1)
    assert log.durable_offset == 0
    assert log.note_durable(1, log.generation)
    assert not log.note_durable(1, log.generation)
