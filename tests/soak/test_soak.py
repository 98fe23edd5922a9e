"""Two minutes of random faults on a real cluster; ``make soak`` is the same for longer."""

from __future__ import annotations

import itertools

import pytest

from kraftjbod.testing import log_disks
from tests.soak.committed_reader import CommittedRecord
from tests.soak.copiers import compare
from tests.soak.large_logs import Struck, unexplained_states
from tests.soak.plan import UNCLEAN, Kind, Round, plan
from tests.soak.soak import disk_bytes, soak

SECONDS = 120.0


def _costly(strikes: Round) -> set[int]:
    """Brokers of which a round may cost records."""
    return {
        strike.broker
        for strike in strikes
        if strike.kind in UNCLEAN and not (strike.kind is Kind.FREEZE and strike.for_s <= 6.0)
    }


def test_a_plan_keeps_to_the_promise_and_leaves_no_kind_out() -> None:
    for seed in range(50):
        rounds = list(itertools.islice(plan(seed, brokers=3, dirs=2), 2 * len(Kind)))
        assert all(len(_costly(strikes)) <= 1 for strikes in rounds), seed
        assert {strike.kind for strikes in rounds for strike in strikes} == set(Kind)
        assert rounds == list(itertools.islice(plan(seed, brokers=3, dirs=2), 2 * len(Kind)))


def test_compare_copies_finds_lost_repeated_and_foreign_records() -> None:
    expected = [CommittedRecord(0, offset, b"v %d" % offset) for offset in (3, 4, 6)]
    copies = [CommittedRecord(1, at, b"%d %d %s" % one) for at, one in enumerate(expected)]
    assert compare(expected, copies) == []
    assert compare(expected, copies[1:]) == ["(0, 3) is not copied: b'v 3'"]
    assert compare(expected, [*copies, copies[1]]) == ["(0, 4) is copied again, or after 6: b'v 4'"]
    assert compare(expected[:2], copies) == ["(0, 6) is copied and was never committed: b'v 6'"]


def test_disk_of_a_soak_with_large_logs_holds_all_of_its_broker() -> None:
    """A broker has a third of 20 GB, and one of its two disks can be replaced."""
    assert disk_bytes(3600, 20) > 1.2 * 20e9 / 3 + disk_bytes(3600, 0)


def test_unexplained_states_are_those_without_a_strike_on_the_broker() -> None:
    def stalled(at_s: int) -> dict[str, str]:
        return {"event": "log_dir_stalled", "timestamp": f"2026-11-26T00:00:{at_s:02}Z"}

    midnight_s = 1_795_651_200.0
    struck = [Struck(frozenset({2}), midnight_s + 10, midnight_s + 20)]
    other = {"event": "log_dir_answers_again", "timestamp": "2026-11-26T00:00:30Z"}
    events = {1: [stalled(15)], 2: [stalled(9), stalled(10), stalled(25), stalled(26), other]}
    assert unexplained_states(events, struck) == [
        f"log_dir_stalled without a strike: {stalled(at_s)}" for at_s in (15, 9, 26)
    ]


@pytest.mark.process
@pytest.mark.disk
@pytest.mark.clients
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost() -> None:
    reason = log_disks.why_not("ext4")
    if reason is not None:
        pytest.skip(f"no disks that lose what was not flushed: {reason}")
    report = soak(20261122, SECONDS)
    print("\n".join(report.lines()))
    assert report.findings == []
    assert report.rounds > 0 and report.acked > 0 and report.commits > 0
