"""Raft's invariants in simulated quorums with faults, and detection of omitted rules.

``QUORUM_SEEDS=10000 QUORUM_FIRST_SEED=500 pytest tests/unit/raft/machine/test_quorum_search.py``
searches further than ``make test`` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from kraftjbod.raft.machine import core as core_module
from kraftjbod.raft.machine import leadership
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.leadership import Leadership
from kraftjbod.raft.machine.messages import Append, Entry
from kraftjbod.raft.machine.voter_set import ReplicaKey
from tests.unit.raft.machine import quorum_world
from tests.unit.raft.machine.quorum_world import World

SEEDS = int(os.environ.get("QUORUM_SEEDS", "90"))
FIRST_SEED = int(os.environ.get("QUORUM_FIRST_SEED", "0"))
STEPS = 1000
#: Mutants are found much earlier.
MAX_SEEDS = 2000


@pytest.fixture(autouse=True)
def small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split a log over many messages, each of which may be lost."""
    monkeypatch.setattr(leadership, "MAX_APPEND_ENTRIES", 2)
    monkeypatch.setattr(leadership, "MAX_IN_FLIGHT", 3)


def _run(seed: int, core_type: type[RaftCore] = RaftCore) -> World:
    return quorum_world.run(seed, voters=3 if seed % 2 else 5, steps=STEPS, core_type=core_type)


def test_quorum_invariants_hold_in_simulations_with_faults() -> None:
    applied = rotted = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            world = _run(seed)
            applied, rotted = applied + len(world.applied), rotted + world.rotted
        except AssertionError as e:
            raise AssertionError(f"seed {seed}: {e}") from e
    # A simulation in which nothing happens finds nothing.
    assert applied > 20 * SEEDS
    assert rotted > SEEDS // 2


class NoPreVote(RaftCore):
    def campaign(self) -> None:
        if self.leadership is None and self.is_voter:
            self._stand(is_transfer=False)
        else:
            super().campaign()


class NoLease(RaftCore):
    """Votes also while a leader is known."""

    _has_recent_leader = property(lambda self: self.leadership is not None)  # type: ignore[assignment]


class NoLogMatching(RaftCore):
    def _fits(self, message: Append) -> bool:
        return message.previous_offset <= self.log.last_offset


class NoTruncation(RaftCore):
    def _take(self, entries: tuple[Entry, ...]) -> bool:
        new = tuple(entry for entry in entries if entry.offset > self.log.last_offset)
        self.log.append_entries(new)
        return bool(new)


class VotesTwice(RaftCore):
    def _may_vote_for(self, candidate: ReplicaKey) -> bool:
        return True


class VotesForAnyLog(RaftCore):
    def _is_up_to_date(self, last_term: int, last_offset: int) -> bool:
        return True


class AcknowledgesUncompared(RaftCore):
    def _acknowledge(self) -> None:
        self._matched_offset = max(self._matched_offset, self.log.durable_offset)
        super()._acknowledge()


class SpeaksAtOnce(RaftCore):
    """Votes although it has lost acknowledged entries."""

    is_mute = property(lambda self: False)  # type: ignore[assignment]


class CommitsOlderTerms(Leadership):
    def _may_commit(self, offset: int) -> bool:
        return True


class CountsFormerGenerations(RaftCore):
    """Counts a write of an entry that was replaced and restored meanwhile."""

    def entries_persisted(self, last: Entry, generation: int) -> None:
        if self.log.holds(last.offset, last.term):
            super().entries_persisted(last, self.log.generation)


Patch = Callable[[pytest.MonkeyPatch], None]


def _in_core(name: str, value: object) -> Patch:
    return lambda patch: patch.setattr(core_module, name, value)


def _in_world(name: str) -> Patch:
    return lambda patch: patch.setattr(World, name, True)


@pytest.mark.long
@pytest.mark.parametrize(
    "mutant",
    [
        NoPreVote,
        NoLease,
        NoLogMatching,
        NoTruncation,
        VotesTwice,
        VotesForAnyLog,
        AcknowledgesUncompared,
        SpeaksAtOnce,
        CountsFormerGenerations,
        _in_core("Leadership", CommitsOlderTerms),
        _in_world("acknowledges_before_it_persists"),
        _in_world("sends_before_it_persists"),
        _in_world("forgets_a_lost_tail"),
        _in_world("keeps_the_term_of_a_lost_tail"),
    ],
    ids=lambda mutant: getattr(mutant, "__name__", None),
)
def test_quorum_simulation_detects_a_raft_core_without_one_of_its_rules(
    mutant: type[RaftCore] | Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    core_type = RaftCore
    if isinstance(mutant, type):
        core_type = mutant
    else:
        mutant(monkeypatch)
    for seed in range(MAX_SEEDS):
        try:
            _run(seed, core_type)
        except (AssertionError, IndexError) as e:
            print(f"found after {seed + 1} seeds: {e}")
            return
    pytest.fail(f"not found by {MAX_SEEDS} seeds")
