"""LOOP. The run of one scenario, from its topic to its findings, and an observation without fault.

At any failure or interruption the fault is undone, the load ends, and a topic that was created here
is deleted. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kraftjbod.cli.clients.cluster_admin import create_topic, delete_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError, StartupError
from kraftjbod.gameday.faults.cluster_watch import ClusterWatch, victims, wait_in_sync
from kraftjbod.gameday.faults.cold_reader import READ
from kraftjbod.gameday.faults.fault import RETURN_TIMEOUT_S, Fault, Target
from kraftjbod.gameday.load.acknowledgements import Acknowledgements
from kraftjbod.gameday.load.check import Findings, unread
from kraftjbod.gameday.load.metadata_load import MetadataLoad
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.gameday.load.read_back import end_offsets, read_back
from kraftjbod.gameday.load.topic_load import DELIVERY_TIMEOUT_MS, TopicLoad
from kraftjbod.gameday.outcome import Mark, Outcome, PartitionOutcome, p99_ms
from kraftjbod.gameday.scenarios import MAY_PASS_UNNOTICED, Phases

REPLICATION_FACTOR: Final = 3
_MIN_INSYNC: Final = "2"
_STEADY_TIMEOUT_S: Final = 60.0
_JUST_BEFORE_S: Final = 0.5
_POLL_S: Final = 0.05
_GRACE_S: Final = 30.0

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings that all scenarios of a game day share."""

    bootstrap_servers: str
    topic: str
    partitions: int
    phases: Phases
    rate: float = 50.0
    """Records per second and partition."""
    record_bytes: int = 200
    keep_topic: bool = False
    """Whether the topic that a scenario creates stays."""


class ScenarioRun:
    """Plays one scenario: produces a load, injects the fault, and compares the records with the
    acknowledgements. Each scenario needs a new instance."""

    def __init__(
        self,
        settings: Settings,
        *,
        scenario: str,
        run: str,
        limit_ms: int,
        report: Report,
        metadata_limit_ms: int | None = None,
    ) -> None:
        """:param run: name in the keys of this run's records, which distinguishes them.
        :param metadata_limit_ms: longest allowed time without a successful metadata operation.
        """
        self._settings = settings
        self._scenario = scenario
        self._run = run
        self._limit_ms = limit_ms
        self._metadata_limit_ms = metadata_limit_ms
        self._report = report
        self._marks: list[Mark] = []
        self._problems: list[str] = []
        self._watch = ClusterWatch(settings.bootstrap_servers, settings.topic)
        self._metadata = MetadataLoad(settings.bootstrap_servers, settings.topic)

    async def play(
        self, client: ClusterClient, fault: Fault, load: TopicLoad | None = None
    ) -> Outcome:
        """Play the scenario with ``fault``.

        :param load: by default numbered records at the rate of the settings.
        :raises KraftJbodError: the scenario cannot be played. Everything is undone by then.
        """
        load = load or self._numbered_load(range(self._settings.partitions))
        settings = self._settings
        async with self._undone(fault, client):
            self._report(f"{self._scenario}: preparing")
            await fault.prepare(client)
            async with own_topic(client, settings):
                target = await fault.aim(client, settings.topic)
                async with self._flowing(load):
                    await self._break_and_mend(client, fault, target)
                    load.stop()
                outcome = await self._judge(client, load, target, {})
        return outcome

    async def observe(
        self, client: ClusterClient, *, seconds: float, stop: asyncio.Event, is_own: bool
    ) -> Outcome:
        """Measure without a fault for ``seconds``, or until ``stop`` is set."""
        settings = self._settings
        async with _topic_to_watch(client, settings, is_own=is_own) as partitions:
            starts = await end_offsets(client, settings.topic, partitions)
            target = Target(broker_id=-1, what=f"topic {settings.topic}", led=frozenset())
            load = self._numbered_load(partitions)
            async with self._flowing(load):
                self._report(f"{self._scenario}: watching for {seconds:.0f} s; Ctrl-C ends it")
                try:
                    async with asyncio.timeout(seconds):
                        await stop.wait()
                except TimeoutError:
                    self._report(f"{self._scenario}: the time is over")
                load.stop()
            return await self._judge(client, load, target, starts)

    def _numbered_load(self, partitions: range) -> TopicLoad:
        streams = {
            partition: NumberedStream(
                f"{self._run}-{self._scenario}-{partition}",
                size_bytes=self._settings.record_bytes,
            )
            for partition in partitions
        }
        return TopicLoad.at_rate(streams, self._settings.rate)

    @asynccontextmanager
    async def _flowing(self, load: TopicLoad) -> AsyncIterator[None]:
        """Run the load and the watch within the context, and end both afterwards."""
        settings = self._settings
        producing = asyncio.create_task(load.run_load(settings.bootstrap_servers, settings.topic))
        watching = [asyncio.create_task(self._watch.run_watch())]
        if self._metadata_limit_ms is not None:
            watching.append(asyncio.create_task(self._metadata.run_load()))
        try:
            await self._wait_steady(load, producing)
            self.mark("steady")
            yield
            # A producer that waits for an answer fails before this timeout.
            await asyncio.wait({producing}, timeout=DELIVERY_TIMEOUT_MS / 1000 + _GRACE_S)
            if not producing.done():
                self._problems.append("a producer did not end, its last records are in doubt")
        finally:
            for task in (producing, *watching):
                task.cancel()
            ended = await asyncio.gather(producing, *watching, return_exceptions=True)
            self._problems += [
                f"{type(end).__name__}: {end}" for end in ended if isinstance(end, Exception)
            ]
        self.mark("load ended")

    async def _wait_steady(self, load: TopicLoad, producing: asyncio.Task[None]) -> None:
        deadline = time.monotonic() + _STEADY_TIMEOUT_S
        while not load.is_flowing:
            if producing.done():
                producing.result()
            if load.errors:
                raise StartupError(f"the load does not flow: {'; '.join(load.errors)}")
            if time.monotonic() > deadline:
                raise StartupError(
                    f"some partition took nothing within {_STEADY_TIMEOUT_S:.0f} s; "
                    f"the cluster said last: {self._watch.trouble or 'nothing wrong'}"
                )
            await asyncio.sleep(_POLL_S)

    async def _break_and_mend(self, client: ClusterClient, fault: Fault, target: Target) -> None:
        phases = self._settings.phases
        await asyncio.sleep(phases.before_s)
        led = f", with {len(target.led)} leaders" if target.led else ""
        self._report(f"{self._scenario}: {target.what}{led}")
        fault.inject()
        self.mark("injected")
        began_s = time.monotonic()
        noticed_s = await fault.wait_noticed(client)
        if noticed_s is not None:
            self.mark("noticed", noticed_s)
        elif self._scenario not in MAY_PASS_UNNOTICED:
            self._problems.append("the cluster did not report the fault")
        await asyncio.sleep(max(0.0, began_s + phases.fault_s - time.monotonic()))
        self.mark("healed")
        self._report(f"{self._scenario}: healing")
        await fault.heal(client)
        self.mark("back")
        await wait_in_sync(client, self._settings.topic, timeout_s=RETURN_TIMEOUT_S)
        self.mark("in sync")
        await asyncio.sleep(phases.after_s)

    async def _judge(
        self, client: ClusterClient, load: TopicLoad, target: Target, starts: dict[int, int]
    ) -> Outcome:
        self._report(f"{self._scenario}: reading {load.acked} acknowledged records back")
        findings = await self._read_back(client, load, starts)
        instants = {mark.what: mark.at_s for mark in self._marks}
        began_s, ended_s = instants["steady"], instants["load ended"]
        since_s = instants.get("injected", began_s + _JUST_BEFORE_S) - _JUST_BEFORE_S
        by_partition = {found.partition: found for found in findings}
        started = datetime.now(UTC).timestamp() - (time.monotonic() - began_s)
        return Outcome(
            scenario=self._scenario,
            target=target.what,
            started_at=datetime.fromtimestamp(started, UTC).isoformat(timespec="milliseconds"),
            began_s=began_s,
            ended_s=ended_s,
            limit_ms=self._limit_ms,
            marks=sorted(
                (mark for mark in self._marks if mark.what not in ("steady", "load ended")),
                key=lambda mark: mark.at_s,
            ),
            partitions=[
                self._partition(one, by_partition[one.partition], target, since_s, began_s, ended_s)
                for one in load.loads
            ],
            problems=[*self._problems, *load.errors],
            metadata_gap_ms=self._metadata_gap_ms(since_s, ended_s),
            metadata_limit_ms=self._metadata_limit_ms,
            p99_before_ms=self._p99_ms(load, "steady", "injected"),
            p99_during_ms=self._p99_ms(load, "injected", READ if READ in instants else "back"),
        )

    def _p99_ms(self, load: TopicLoad, begin: str, end: str) -> float | None:
        """Return the percentile over all partitions between two marks; None without the marks."""
        instants = {mark.what: mark.at_s for mark in self._marks}
        if begin not in instants or end not in instants:
            return None
        return p99_ms(
            [wait_s for one in load.loads for wait_s in one.waits_s(instants[begin], instants[end])]
        )

    def _metadata_gap_ms(self, since_s: float, ended_s: float) -> int | None:
        if self._metadata_limit_ms is None:
            return None
        return self._metadata.longest_gap_ms(since_s, ended_s)

    async def _read_back(
        self, client: ClusterClient, load: TopicLoad, starts: dict[int, int]
    ) -> list[Findings]:
        """Read all records back. Unreadable partitions must not prevent the report of gaps."""
        topic = self._settings.topic
        try:
            return await read_back(client, topic, load.loads, lambda _: None, starts=starts)
        except OperatingError as e:
            self._problems.append(f"lost records are unknown, {topic} cannot be read: {e}")
            return [unread(one) for one in load.loads]

    def _partition(
        self,
        load: Acknowledgements,
        findings: Findings,
        target: Target,
        since_s: float,
        began_s: float,
        ended_s: float,
    ) -> PartitionOutcome:
        calm = load.longest_gap_within(began_s, since_s)
        changes = self._watch.changes
        return PartitionOutcome(
            partition=load.partition,
            was_hit=load.partition in target.led,
            gap=load.longest_gap(since_s, ended_s, open_until_s=ended_s),
            calm_gap_ms=0 if calm is None else calm.length_ms,
            acks=load.acks,
            findings=findings,
            leader_changes=[c.at_s for c in changes if c.partition == load.partition],
        )

    def mark(self, what: str, at_s: float | None = None) -> None:
        """Record an event, now or at ``at_s`` (monotonic)."""
        self._marks.append(Mark(what=what, at_s=time.monotonic() if at_s is None else at_s))

    @asynccontextmanager
    async def _undone(self, fault: Fault, client: ClusterClient) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            self._report(f"{self._scenario}: undoing the fault")
            try:
                await fault.undo(client)
            except KraftJbodError as e:
                # The caller gets the first error, so the failure to undo is only reported.
                self._report(f"{self._scenario}: {e}")
            raise
        await fault.undo(client)


@asynccontextmanager
async def own_topic(client: ClusterClient, settings: Settings) -> AsyncIterator[None]:
    """Create a topic, wait until all replicas are in sync and on disks, and delete it at the end.

    The topic stays if the settings keep it.

    :raises StartupError: the topic exists already, or is not in sync in time.
    """
    topic = settings.topic
    await client.retry(client.refresh_metadata)
    try:
        await create_topic(
            client,
            topic,
            partitions=settings.partitions,
            replication_factor=REPLICATION_FACTOR,
            configs={"min.insync.replicas": _MIN_INSYNC},
        )
    except OperatingError as e:
        if e.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            raise StartupError(
                f"there is a topic {topic} already: delete it, or name another with --topic"
            ) from e
        raise
    try:
        await wait_in_sync(client, topic, timeout_s=_STEADY_TIMEOUT_S)
        await _wait_on_disks(client, settings)
        yield
    finally:
        if not settings.keep_topic:
            await client.retry(lambda: delete_topic(client, topic))


async def _wait_on_disks(client: ClusterClient, settings: Settings) -> None:
    """Wait for the directories: a new replica counts as in sync before it has one."""
    wanted = settings.partitions * REPLICATION_FACTOR
    deadline = time.monotonic() + _STEADY_TIMEOUT_S
    while True:
        there = sum(victim.replicas for victim in await victims(client, settings.topic))
        if there >= wanted:
            return
        if time.monotonic() > deadline:
            raise StartupError(
                f"{there} of {wanted} replicas of {settings.topic} are on disks after "
                f"{_STEADY_TIMEOUT_S:.0f} s"
            )
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _topic_to_watch(
    client: ClusterClient, settings: Settings, *, is_own: bool
) -> AsyncIterator[range]:
    """Yield the partitions of the observed topic. An existing topic is not deleted.

    :raises StartupError: there is no such topic.
    """
    if is_own:
        async with own_topic(client, settings):
            yield range(settings.partitions)
        return
    metadata = await client.retry(lambda: client.refresh_metadata([settings.topic]))
    try:
        partitions = len(metadata.topic(settings.topic).partitions)
    except OperatingError as e:
        raise StartupError(f"{e}; without --topic there will be one to watch") from e
    yield range(partitions)
