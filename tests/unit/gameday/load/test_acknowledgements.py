"""``Acknowledgements``: gaps between acknowledgements, and open gaps at their end."""

from __future__ import annotations

from kraftjbod.gameday.load.acknowledgements import Ack, Acknowledgements, Gap
from kraftjbod.gameday.load.numbered_stream import NumberedStream


def acknowledged(*instants: float) -> Acknowledgements:
    made = Acknowledgements(0, NumberedStream("run", size_bytes=64))
    made.acks = [Ack(at_s=at, offset=0, count=1) for at in instants]
    return made


def test_longest_gap_overlaps_the_given_time() -> None:
    load = acknowledged(0.0, 5.0, 6.0, 6.5, 9.0)
    assert load.longest_gap(5.5, 7.0) == Gap(6.5, 9.0)
    assert load.longest_gap(5.5, 6.2).length_ms == 1000
    assert acknowledged().longest_gap(1.0, 2.0) == Gap(1.0, 2.0)


def test_longest_gap_includes_open_gap_at_the_end() -> None:
    load = acknowledged(0.0, 1.0, 2.0)
    assert load.longest_gap(0.5, 9.0) == Gap(0.0, 1.0)
    assert load.longest_gap(0.5, 9.0, open_until_s=9.0) == Gap(2.0, 9.0)
    assert load.longest_gap(0.5, 2.0, open_until_s=2.0) == Gap(0.0, 1.0)


def test_longest_gap_within_excludes_gaps_that_reach_outside() -> None:
    load = acknowledged(0.0, 5.0, 5.5, 6.5, 20.0)
    assert load.longest_gap_within(4.0, 10.0) == Gap(5.5, 6.5)
    assert load.longest_gap_within(7.0, 8.0) is None
