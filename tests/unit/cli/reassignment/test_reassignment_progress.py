"""Progress of a reassignment: bytes, rates, remaining time and the end of the wait."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import BrokerNode, ClusterMetadata
from kraftjbod.cli.clients.replica_admin import OngoingReassignment
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentPlan, Replica
from kraftjbod.cli.reassignment.reassignment_progress import (
    Copying,
    Speed,
    StalledError,
    bars,
    brokers_to_ask,
    copies,
    figures,
    follow,
    show_once,
)
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.reassignment.test_reassignment_status import copy, log_dir, metadata

FOO_0 = TopicPartition("foo", 0)
MIB = 1 << 20


def cluster(leader: int, *brokers: int) -> ClusterMetadata:
    nodes = {broker: BrokerNode(node_id=broker, host="h", port=1) for broker in brokers}
    return ClusterMetadata(brokers=nodes, topics=metadata(leader).topics)


def copying(done_bytes: int, total_bytes: int = 40 * MIB) -> Copying:
    return Copying(label="foo-0 to broker 3", done_bytes=done_bytes, total_bytes=total_bytes)


def test_copies_measure_new_replica_against_its_leader() -> None:
    plan = ReassignmentPlan(replicas={FOO_0: (2, 3)})
    ongoing = {FOO_0: OngoingReassignment(replicas=(2, 3, 1), adding=(3, 2), removing=(1,))}
    known = cluster(1, 1, 3)
    assert brokers_to_ask(plan, ongoing, known) == [1, 3]
    found = {1: [log_dir("/d1", copy(20))], 3: [log_dir("/d1", copy(5))]}
    assert copies(plan, ongoing, known, found) == [
        Copying(label="foo-0 to broker 3", done_bytes=5, total_bytes=20),
        Copying(label="foo-0 to broker 2", done_bytes=0, total_bytes=20),
    ]


def test_copies_measure_move_against_the_current_replica() -> None:
    plan = ReassignmentPlan(replicas={FOO_0: (1,)}, log_dirs={Replica(1, "foo", 0): "/d2"})
    known = cluster(1, 1)
    assert brokers_to_ask(plan, {}, known) == [1]
    moving = {1: [log_dir("/d1", copy(20)), log_dir("/d2", copy(5, is_future=True))]}
    assert copies(plan, {}, known, moving) == [
        Copying(label="foo-0 on broker 1 to /d2", done_bytes=5, total_bytes=20)
    ]
    assert copies(plan, {}, known, {1: [log_dir("/d2", copy(20))]}) == []


def test_copies_include_replicas_that_are_only_removed() -> None:
    plan = ReassignmentPlan(replicas={FOO_0: (1,)})
    ongoing = {FOO_0: OngoingReassignment(replicas=(1, 2), adding=(), removing=(2,))}
    [leaving] = copies(plan, ongoing, cluster(1, 1), {1: []})
    assert (leaving.label, figures(leaving, None)) == ("foo-0 leaves broker 2", "0 B of 0 B")


def test_speed_is_the_rate_of_the_last_seconds() -> None:
    speed = Speed()
    speed.add(0, 0)
    assert speed.bytes_per_second is None
    for second in range(1, 31):
        speed.add(second * 1000, 100 * second if second <= 20 else 2000)
    assert speed.bytes_per_second == 0
    speed.add(31_000, 3000)
    assert speed.bytes_per_second == 100


def test_speed_restarts_when_a_copy_restarts() -> None:
    speed = Speed()
    speed.add(0, 5000)
    speed.add(1000, 10)
    assert speed.bytes_per_second is None
    speed.add(2000, 30)
    assert speed.bytes_per_second == 20


@pytest.mark.parametrize(
    ("done", "rate", "reported"),
    [
        (12 * MIB, None, "12.0 MiB of 40.0 MiB, 30 %"),
        (12 * MIB, 4.0 * MIB, "12.0 MiB of 40.0 MiB, 30 %, 4.0 MiB/s, 7 s left"),
        (0, MIB / 10, "0 B of 40.0 MiB, 0 %, 102.4 KiB/s, 6 min 40 s left"),
        (0, 4096.0, "0 B of 40.0 MiB, 0 %, 4.0 KiB/s, 2 h 50 min left"),
        (12 * MIB, 0.0, "12.0 MiB of 40.0 MiB, 30 %, 0 B/s"),
        (41 * MIB, 1.0, "41.0 MiB of 40.0 MiB, 100 %, 1 B/s"),
    ],
)
def test_figures_show_bytes_percentage_rate_and_remaining_time(
    done: int, rate: float | None, reported: str
) -> None:
    assert figures(copying(done), rate) == reported


async def test_follow_ends_after_two_empty_polls(capsys: pytest.CaptureFixture[str]) -> None:
    """A single empty poll may come before a move that was requested just now has begun."""
    polls = iter([[], [copying(0)], [], [copying(20 * MIB)], [], []])

    async def poll() -> list[Copying]:
        return next(polls)

    await follow(poll, sample_ms=1)
    assert list(polls) == []
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "foo-0 to broker 3: 0 B of 40.0 MiB, 0 %\n"


async def test_follow_raises_stalled_error_without_progress() -> None:

    async def poll() -> list[Copying]:
        return [copying(7)]

    with pytest.raises(StalledError, match="still under way: foo-0 to broker 3"):
        await follow(poll, sample_ms=1, stalled_after_ms=20)


async def test_follow_raises_stalled_error_if_only_the_source_grows() -> None:
    grown = iter(range(1000))

    async def poll() -> list[Copying]:
        return [copying(7, total_bytes=40 * MIB + next(grown))]

    with pytest.raises(StalledError, match="still under way: foo-0 to broker 3"):
        await follow(poll, sample_ms=1, stalled_after_ms=20)


def test_bars_write_nothing_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """``bars`` is called directly, as on a terminal; standard error is captured here."""
    with bars() as show:
        show([(copying(0), "nothing yet")])
        show([(copying(MIB), "a little")])
        show([])
    assert capsys.readouterr().out == ""


def test_show_once_shortens_long_lists(capsys: pytest.CaptureFixture[str]) -> None:
    show_once([copying(0)] * 25)
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (21, "and 5 more")
