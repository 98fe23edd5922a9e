"""``ScenarioRun``: a scenario is undone even if it fails half way."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, StartupError
from kraftjbod.gameday.faults.fault import CannotPlay, Target
from kraftjbod.gameday.scenario_run import ScenarioRun, Settings, own_topic
from kraftjbod.gameday.scenarios import Phases
from tests.unit.cli.mini_broker import MiniBroker, mini_broker


class NoFault:
    """A fault that records its calls, and can refuse."""

    def __init__(self, refuses: str | None = None, *, undo_fails: bool = False) -> None:
        self.asked: list[str] = []
        self._refuses = refuses
        self._undo_fails = undo_fails

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what == self._refuses:
            raise CannotPlay(f"cannot {what}")

    async def prepare(self, client: ClusterClient) -> None:
        self._ask("prepare")

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        self._ask("aim")
        return Target(broker_id=7, what="nothing", led=frozenset({0}))

    def inject(self) -> None:
        self._ask("inject")

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        self._ask("wait_noticed")
        return None

    async def heal(self, client: ClusterClient) -> None:
        self._ask("heal")

    async def undo(self, client: ClusterClient) -> None:
        self._ask("undo")
        if self._undo_fails:
            raise StartupError("chmod it by hand")


def settings_of(broker: MiniBroker, topic: str = "t") -> Settings:
    return Settings(
        bootstrap_servers=broker.address,
        topic=topic,
        partitions=2,
        rate=200.0,
        record_bytes=64,
        phases=Phases(before_s=0.1, fault_s=0.1, after_s=0.1),
    )


def scenario_run(broker: MiniBroker, reported: list[str], topic: str = "t") -> ScenarioRun:
    return ScenarioRun(
        settings_of(broker, topic),
        scenario="observe",
        run="r",
        limit_ms=60_000,
        report=reported.append,
    )


async def test_observe_counts_its_records_until_stopped_and_keeps_the_topic() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        topic = broker.create("t", 2)
        stop = asyncio.Event()
        reported: list[str] = []
        run = scenario_run(broker, reported)
        watching = asyncio.create_task(run.observe(client, seconds=600, stop=stop, is_own=False))
        while not any("watching" in text for text in reported):
            await asyncio.sleep(0.01)
        stop.set()
        outcome = await watching
        assert outcome.complaints == []
        assert outcome.acknowledged == topic.end(0) + topic.end(1)
        assert [one.partition for one in outcome.partitions] == [0, 1]
        assert "t" in broker.topics, "it was there before"


async def test_observe_of_missing_topic_fails() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        with pytest.raises(StartupError, match="UNKNOWN_TOPIC_OR_PARTITION; without --topic"):
            await scenario_run(broker, []).observe(
                client, seconds=1, stop=asyncio.Event(), is_own=False
            )


async def test_play_undoes_fault_that_cannot_be_prepared() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        fault = NoFault("prepare")
        with pytest.raises(CannotPlay, match="cannot prepare"):
            await scenario_run(broker, []).play(client, fault)
        assert fault.asked == ["prepare", "undo"]
        assert broker.topics == {}


async def test_play_raises_first_error_and_reports_failed_undo() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        reported: list[str] = []
        with pytest.raises(CannotPlay, match="cannot prepare"):
            await scenario_run(broker, reported).play(client, NoFault("prepare", undo_fails=True))
        assert any("chmod it by hand" in text for text in reported)


async def test_own_topic_refuses_existing_topic() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        with pytest.raises(StartupError, match="there is a topic t already"):
            async with own_topic(client, settings_of(broker)):
                raise AssertionError("not reached")
        assert list(broker.topics) == ["t"]


async def test_observe_reports_gaps_even_if_records_cannot_be_read_back() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        stop = asyncio.Event()
        stop.set()
        broker.fail_next["Fetch"] = [ErrorCode.MESSAGE_TOO_LARGE] * 9
        outcome = await scenario_run(broker, []).observe(
            client, seconds=60, stop=stop, is_own=False
        )
        [complaint] = outcome.complaints
        assert complaint.startswith("lost records are unknown, t cannot be read")
        assert outcome.acknowledged > 0
        assert all(one.findings.found == 0 for one in outcome.partitions)
