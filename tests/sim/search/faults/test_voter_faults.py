from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Fault, Kind, Shape
from tests.sim.search.seed_run import SeedRun

OF_VOTERS = [Kind.VOTERS, Kind.METADATA_REPLACED, Kind.METADATA_STANDALONE]


@pytest.mark.long
def test_voters_are_removed_and_added_again_also_with_empty_disks() -> None:
    outcome = play([*OF_VOTERS, *OF_VOTERS], controllers=3, every_ms=8_000)
    assert not outcome.skipped
    story = "\n".join(outcome.story)
    assert story.count("name the voters in the metadata log: done") == 1
    assert story.count("add voter") > story.count("remove voter") >= len(OF_VOTERS)


def test_removal_by_a_leader_that_is_cut_off_ends_and_breaks_no_invariant() -> None:
    outcome = play([Kind.VOTERS_CUT_OFF], controllers=3)
    story = "\n".join(outcome.story)
    assert outcome.played == {Kind.VOTERS_CUT_OFF: 1}
    assert "remove voter" in story and ", cut off: " in story


def test_leader_that_a_late_request_cuts_off_is_connected_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = OperatorWork.ask

    async def ask_late(
        work: OperatorWork, what: str, question: Callable[[ClusterClient], Awaitable[None]]
    ) -> ErrorCode | None:
        async def late(client: ClusterClient) -> None:
            await asyncio.sleep(2.5)
            await question(client)

        return await ask(work, what, late)

    monkeypatch.setattr(OperatorWork, "ask", ask_late)
    play([Kind.VOTERS_CUT_OFF], controllers=3)


@pytest.mark.long
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_metadata_disks_of_controllers_break_no_invariant(lost: int) -> None:
    schedule = tuple(
        Fault(
            number=number,
            at_ms=3_000 + number * 200,
            kind=Kind.METADATA_LOST,
            broker=1,
            dir=0,
            other=2,
            for_ms=1_000,
            choice=number,
            controller=number,
        )
        for number in range(1, lost + 1)
    )
    shape = Shape(partitions=2, controllers=3)
    outcome = SeedRun(11, shape, schedule, keeps_promise=False).run()
    assert outcome.findings == []
    assert outcome.played == {Kind.METADATA_LOST: lost}
    story = "\n".join(outcome.story)
    assert ("controller_refused_by_peer" in story) is (lost < 3)
