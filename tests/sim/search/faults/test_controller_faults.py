from __future__ import annotations

import pytest

from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.messages import Entry
from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import (
    LARGE_QUORUM_WEIGHTS,
    OF_THE_CONTROLLER,
    UNLIMITED_WEIGHTS,
    Fault,
    Kind,
    Shape,
)
from tests.sim.search.faults.test_late_controllers import OF_LATE_CONTROLLERS
from tests.sim.search.faults.test_voter_faults import OF_VOTERS
from tests.sim.search.seed_run import SeedRun


@pytest.mark.long
def test_each_kind_of_controller_fault_ends_and_breaks_no_invariant() -> None:
    others = {*OF_VOTERS, *UNLIMITED_WEIGHTS, *LARGE_QUORUM_WEIGHTS, *OF_LATE_CONTROLLERS}
    others |= {Kind.LEADERS_CUT_OFF, Kind.VOTERS_CUT_OFF}
    kinds = sorted({*OF_THE_CONTROLLER, Kind.UNREPORTED_EIO, Kind.CLOCK_DRIFT} - others)
    outcome = play(kinds, controllers=3)
    struck = {line.split()[-1] for line in outcome.story if " strikes " in line}
    assert struck <= {"controller-100", "controller-101", "controller-102"}
    assert len(struck) > 1, "the leader is struck, and another controller leads then"


@pytest.mark.long
def test_hang_of_follower_while_leaders_change_restores_a_replaced_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first write of an entry ends when a later leader has replaced and restored that entry."""
    written: list[tuple[int, int, int | None]] = []
    note = RaftCore.entries_persisted

    def entries_persisted(core: RaftCore, last: Entry, generation: int) -> None:
        if generation != core.log.generation:
            written.append((last.offset, last.term, core.log.term_at(last.offset)))
        note(core, last, generation)

    monkeypatch.setattr(RaftCore, "entries_persisted", entries_persisted)
    hangs = [Kind.METADATA_HANG_OF_FOLLOWER] * 3
    for seed in range(11, 19):
        outcome = play(hangs, controllers=5, every_ms=8_000, seed=seed)
        assert outcome.played == {Kind.METADATA_HANG_OF_FOLLOWER: 3}
        replaced = {(offset, after, before) for offset, before, after in written}
        if any((offset, before, after) in replaced for offset, before, after in written):
            return
        written.clear()
    pytest.fail("no entry was restored in any of the seeds")


@pytest.mark.long
def test_rotten_metadata_snapshot_is_noticed_and_breaks_no_invariant() -> None:
    """Both receive the leader's snapshot while one of its bits is flipped."""
    kinds = {Kind.METADATA_ROT: 4_000, Kind.KILL: 300, Kind.CONTROLLER_KILL: 1_500}
    schedule = tuple(
        Fault(
            number=number,
            at_ms=begin_ms + 100 * i,
            kind=kind,
            broker=2,
            dir=0,
            other=3,
            for_ms=for_ms,
            choice=number,
            controller=0 if kind is Kind.METADATA_ROT else 2,
        )
        for begin_ms in (6_000, 11_500, 17_000)
        for i, (kind, for_ms) in enumerate(kinds.items())
        for number in (begin_ms + i,)
    )
    damages_found = 0
    for seed in range(1, 6):
        outcome = SeedRun(seed, Shape(partitions=2, controllers=3), schedule).run()
        assert outcome.findings == []
        assert outcome.rotted == 3
        damages_found += outcome.damages_found
    assert damages_found, "a bit that rots behind a page in memory shows only later"


def test_each_voter_with_damaged_log_end_holds_the_end_again() -> None:
    outcome = play([Kind.METADATA_LOST_END] * 3, controllers=3)
    story = "\n".join(outcome.story)
    assert story.count(" fault        /controller-") == 3
    assert story.count("metadata_log_is_short") == story.count("metadata_log_is_whole") > 0


@pytest.mark.long
def test_successive_cut_off_leaders_lose_entries_of_several_terms_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removed: list[set[int | None]] = []
    truncate = EntryLog._truncate

    def note_terms(log: EntryLog, offset: int) -> None:
        removed.append({log.term_at(one) for one in range(offset, log.last_offset + 1)})
        truncate(log, offset)

    monkeypatch.setattr(EntryLog, "_truncate", note_terms)
    for seed in range(11, 19):
        outcome = play([Kind.LEADERS_CUT_OFF], controllers=3, seed=seed)
        assert outcome.played == {Kind.LEADERS_CUT_OFF: 1}
        if any(len(terms) > 1 for terms in removed):
            return
    pytest.fail("no controller lost entries of two terms in any of the seeds")
