"""``run_seed``: a whole cluster with clients, faults and invariants, drawn from one seed.

The order of a run: the cluster starts, topics are created, clients start, faults are played while
invariants are checked, everything must recover within a bounded virtual time, consumers read to the
end, brokers stop in order, and their disks are checked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.cli.clients.producer import ACKS_ALL, ACKS_NONE
from kraftjbod.core import buggify
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.metadata_version import DEFAULT_METADATA_VERSION
from kraftjbod.testing.simulation.call_meter import CallMeter
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedController,
    SimulatedNode,
)
from kraftjbod.testing.simulation.simulated_disk import DiskCosts
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications import chosen
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.fleeting import TOPIC as FLEETING
from tests.sim.search.applications.transactors import HASTY
from tests.sim.search.blame_invariant import is_blamed
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.faults.admin_work import (
    OLDER_FEATURES,
    OLDER_VERSION,
    AdminWork,
)
from tests.sim.search.faults.budget import Budget
from tests.sim.search.faults.controller_faults import ControllerFaults
from tests.sim.search.faults.fault_player import FaultPlayer
from tests.sim.search.faults.observer_life import ObserverLife
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.schedule import (
    Kind,
    Schedule,
    Shape,
    draw_schedule,
    draw_shape,
    only,
)
from tests.sim.search.faults.snapshot_rot import SnapshotRot
from tests.sim.search.faults.stage import Stage
from tests.sim.search.faults.voter_faults import VoterFaults
from tests.sim.search.gap_invariant import silences
from tests.sim.search.invariant_watch import InvariantWatch
from tests.sim.search.ledgers.topic_ledger import TopicLedger
from tests.sim.search.offset_asker import OffsetAsker
from tests.sim.search.quorum_invariants import QuorumInvariants
from tests.sim.search.rest_invariants import left_open, unfinished
from tests.sim.search.workload import (
    LoadedTopic,
    MetadataWrites,
    Workload,
)

SAFE: Final = "safe"
"""A topic whose producers use acks=all, to which the promise applies."""
LOOSE: Final = "loose"
"""A topic with acks=1: it may lose records, but its replicas are equal at the end."""
BLIND: Final = "blind"
"""A topic with acks=0, in some of the seeds: records are read unchanged, or lost."""
_BLIND: Final = 0.5
#: Time for recovery after the last fault.
HEAL_MS: Final = 45_000
_START_MS: Final = 60_000
_STOP_MS: Final = 60_000
#: A client waits for the timeout of a lost answer, and then for the next answer.
#: Markers of a transaction wait 30 s for an answer on a connection that broke for one side.
_CONTINUE_MS: Final = 40_000
#: Each event of the first two aborts a transaction, which takes several requests: if a quarter of
#: the answers fail hardly any transaction ends. The third one limits the metadata entries that a
#: broker can apply per second.
_DELAYING_POINTS: Final = (
    "net.kafka_answer_lost",
    "broker.early_produce_timeout",
    "broker.late_metadata",
)
#: Upper limit of their probability after the last fault.
_DELAYS_AT_MOST: Final = 0.05
_POLL_S: Final = 0.25
#: Limit of the virtual time of a run.
_RUN_MS: Final = 1_200_000
_REQUEST_TIMEOUT_MS: Final = 4_000
#: Limit of the tasks of a broker at rest, which has about fifty.
_MOST_TASKS: Final = 100
#: Virtual time of an event loop iteration of a daemon.
_ITERATION_US: Final = (0, 50, 300)
#: Virtual time per received byte, if iterations take time.
_US_PER_BYTE: Final = (0.0, 0.02, 0.2)
#: Virtual time per Python call, of steps with thousands of calls: the real one, and more, because
#: logs are hundreds of times smaller than real ones.
_US_PER_CALL: Final = (0.3, 20.0, 100.0)
#: Iterations take some time, or costs of calls would have no effect.
_COUNTED_ITERATION_US: Final = 50
#: A follower fetches hundreds of transactions at once, which a small segment does not hold.
_TOPIC_CONFIGS: Final = {HASTY.topic: {"segment.bytes": "1048576"}}
#: Segments here are thousands of times smaller than real ones; the slow disks make up for it.
_DISK_COSTS: Final = (
    DiskCosts(),
    DiskCosts(bytes_per_us=20.0, freed_bytes_per_us=2.0, us_per_name=5.0),
    DiskCosts(bytes_per_us=3.0, freed_bytes_per_us=0.5, us_per_name=40.0),
)
#: Number of voters; each entry is equally likely.
_VOTERS: Final = (1, 1, 1, 3, 3, 5)
# Share of the seeds whose controllers have different settings, and their values.
_DIFFERENT_SETTINGS: Final = 0.4
_SETTINGS: Final = {
    "broker.session.timeout.ms": ("3000", "3000", "2000"),
    "controller.quorum.election.timeout.ms": ("1000", "700", "1300"),
    "metadata.log.max.record.bytes.between.snapshots": ("4000", "1500", "20000", "500"),
    "metadata.log.segment.bytes": ("16384", "2048"),
    "metadata.max.cached.bytes": ("2048", "65536"),
}
#: Limits of the duration of network partitions; each entry is equally likely.
_LONGEST_CUT_MS: Final = (*(6_000,) * 7, 45_000)
#: Share of the quorums with an observer.
_OBSERVED: Final = 0.3
#: Share of the seeds in which one node has older software.
_MIXED: Final = 0.15
#: Share of the seeds with a topic of so many partitions: a change of a broker is decided in parts.
#: A second of such a world takes 2 to 10 seconds of one core, so it is a short one.
_CROWDED: Final = 0.004
_CROWDS: Final = (550, 550, 550, 2_000)
_LONGEST_CROWDED_MS: Final = 4_000
#: Share of the seeds whose metadata is larger than a snapshot is read and sent at once: by so many
#: topics with long lists of throttled replicas.
_LARGE: Final = 0.03
_LARGE_CONFIGS: Final = 20
_THROTTLED: Final = ",".join(f"{partition}:1" for partition in range(10_000, 14_000))
#: Each snapshot of large metadata takes long, so snapshots are rarer.
_LARGE_CONFIG: Final = {"metadata.log.max.record.bytes.between.snapshots": "200000"}
#: Small, so that logs have closed segments, with indexes that are read at a start.
_SEGMENT_BYTES: Final = (4_096, 4_096, 1_024)
_LIGHT_SEGMENT_BYTES: Final = (4_096, 1_024, 1_024)
#: With the shorter ones a short run has closed segments below a recovery point on the disk.
_LOG_INTERVALS: Final = {
    "log.flush.offset.checkpoint.interval.ms": ("3000", "600", "200"),
    "log.retention.check.interval.ms": ("2000", "500"),
}
#: Padding of each record. With the largest, a segment has one record or a few.
_PADDING_BYTES: Final = (0, 150, 600)
#: A light run has a small load, and faults that follow each other quickly.
_LIGHT_GAP_MS: Final = 400
_LIGHT_PAUSE_MS: Final = (800, 800, 250)
#: Events that report rotten bits, found by the scrub or by a read.
_DAMAGE_EVENTS: Final = frozenset(
    {
        "log_damage_found_by_scrub",
        "damaged_leader_steps_down",
        "damaged_follower_leaves_in_sync_set",
        "damaged_leader_has_no_heir",
        "metadata_snapshot_damaged",
    }
)
#: Host of the clients and of the fault player.
_HOST: Final = "client"
#: Shorter than in production, so that more happens in a virtual second.
CONFIG: Final = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.backoff.ms": "200",
    "replica.socket.timeout.ms": "3000",
    "controller.request.timeout.ms": "1000",
    "log.dir.io.timeout.ms": "5000",
    "log.dir.failure.timeout.ms": "6000",
    "log.dir.reserve.bytes": "65536",
    "log.dir.scrub.interval.ms": "4000",
    "log.segment.bytes": "4096",
    "log.index.interval.bytes": "256",
    # Indexes are dropped, files closed and snapshots written all the time.
    "log.index.cache.bytes": "3072",
    "log.open.segments.max": "9",
    "producer.snapshot.interval.bytes": "1024",
    "log.segment.delete.delay.ms": "1500",
    "log.stray.retention.ms": "5000",
    "replica.high.watermark.checkpoint.interval.ms": "1000",
    "leader.imbalance.check.interval.seconds": "5",
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "metadata.log.segment.bytes": "16384",
    # Returning brokers and controllers read from disks, and snapshots.
    "metadata.log.retained.entries": "10",
    "metadata.max.cached.bytes": "2048",
    "storage.telemetry.enable": "false",
    "group.telemetry.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "16384",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "300",
    "group.consumer.session.timeout.ms": "2500",
    "group.consumer.heartbeat.interval.ms": "600",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": "16384",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


@dataclass(kw_only=True)
class Outcome:
    """Result of one seed; the seed passed if there are no ``findings``."""

    seed: int
    findings: list[str] = field(default_factory=list)
    #: Faults, loud events and findings, as lines of seconds, host and text.
    story: list[str] = field(default_factory=list)
    schedule: Schedule = ()
    applications: frozenset[chosen.Kind] = frozenset()
    played: Counter[Kind] = field(default_factory=Counter)
    skipped: Counter[Kind] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)
    """How often each point of the daemons fired (core/buggify.py)."""
    acked: int = 0
    rotted: int = 0
    """Number of flipped bits. A bit that is still flipped at the end is a finding."""
    damages_found: int = 0
    """How often a daemon detected a flipped bit."""
    virtual_ms: int = 0
    healed_ms: int = 0
    """Time from the end of the last fault until the cluster had recovered."""
    trace_hash: str = ""


def plan_of(
    seed: int,
    *,
    duration_ms: int,
    controllers: int | None = None,
    is_light: bool = False,
    keeps_promise: bool = True,
    kinds: Collection[Kind] | None = None,
    longest_cut_ms: int | None = None,
) -> tuple[Shape, Schedule]:
    """Return shape and schedule of a seed, optionally with a given number of controllers."""
    drawn = random.Random(f"quorum {seed}").choice(_VOTERS)
    rng = random.Random(f"plan {seed}")
    shape = draw_shape(rng, controllers=drawn if controllers is None else controllers)
    gap_ms = rng.choice((300, 600, 1_200, 2_500))
    if is_light:
        shape, gap_ms = Shape(controllers=shape.controllers, partitions=2), _LIGHT_GAP_MS
    more = random.Random(f"more {seed}")
    if more.random() < _OBSERVED and shape.controllers > 1:
        shape = dataclasses.replace(shape, observers=1)
    if more.random() < _MIXED:
        shape = dataclasses.replace(shape, is_mixed=True)
    if (chance := more.random()) < _CROWDED:
        shape = dataclasses.replace(shape, crowd=more.choice(_CROWDS))
        duration_ms = min(duration_ms, _LONGEST_CROWDED_MS)
    elif chance < _CROWDED + _LARGE:
        shape = dataclasses.replace(shape, large_configs=_LARGE_CONFIGS)
    drawn_cut_ms = more.choice(_LONGEST_CUT_MS)
    schedule = draw_schedule(
        rng,
        shape,
        duration_ms=duration_ms,
        mean_gap_ms=gap_ms,
        keeps_promise=keeps_promise,
        kinds=kinds,
        longest_cut_ms=drawn_cut_ms if longest_cut_ms is None else longest_cut_ms,
    )
    return shape, schedule


def run_seed(
    seed: int,
    *,
    duration_ms: int = 20_000,
    keeps_promise: bool = True,
    numbers: Sequence[int] | None = None,
    controllers: int | None = None,
    applications: Collection[chosen.Kind] | None = None,
    is_light: bool = False,
    kinds: Collection[Kind] | None = None,
    longest_cut_ms: int | None = None,
    points: Mapping[str, float] = MappingProxyType({}),
) -> Outcome:
    """Play one seed and return the outcome.

    :param keeps_promise: faults stay within what RF 3 and ``min.insync.replicas`` 2 survive. If
        false, records may be lost, and only invariants that still hold are judged.
    :param numbers: numbers of the faults to play; all of them by default.
    :param controllers: number of voters: 1, 3 or 5; drawn from the seed by default.
    :param applications: applications beside the plain load; drawn from the seed by default.
    :param is_light: a small cluster with a light load, which costs a third.
    :param kinds: the only kinds of faults; by default a subset drawn from the seed.
    :param longest_cut_ms: limit of the duration of network partitions; drawn from the seed by
        default.
    :param points: lower limits of the probabilities of some buggify points, by name.
    """
    shape, schedule = plan_of(
        seed,
        duration_ms=duration_ms,
        controllers=controllers,
        is_light=is_light,
        keeps_promise=keeps_promise,
        kinds=kinds,
        longest_cut_ms=longest_cut_ms,
    )
    if numbers is not None:
        schedule = only(schedule, numbers)
    if applications is None:
        applications = chosen.draw_applications(seed)
    return SeedRun(
        seed,
        shape,
        schedule,
        applications,
        keeps_promise=keeps_promise,
        is_light=is_light,
        points=points,
    ).run()


class SeedRun:
    """One run; ``run`` must be called once."""

    def __init__(
        self,
        seed: int,
        shape: Shape,
        schedule: Schedule,
        applications: Collection[chosen.Kind] = (),
        *,
        keeps_promise: bool = True,
        is_light: bool = False,
        points: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._shape = shape
        self._keeps_promise = keeps_promise
        self._is_whole = False
        self.outcome = Outcome(seed=seed, schedule=schedule, applications=frozenset(applications))
        self._cluster = _make_cluster(seed, shape, is_light=is_light)
        world = self._cluster.world
        world.points = buggify.Points(world.rng_of, points)
        if chosen.Kind.HASTY in applications:
            _count_calls(random.Random(f"calls {seed}"), self._cluster)
        self._view = ClusterView(self._cluster)
        # A light load leaves more time to faults; with a heavy one each fault affects more records.
        drawn_ms = random.Random(f"load {seed}").choice((100, 250, 800))
        light_ms = random.Random(f"light load {seed}").choice(_LIGHT_PAUSE_MS)
        pause_ms = light_ms if is_light else drawn_ms
        self._topics = _loaded_topics(seed, shape.partitions, pause_ms)
        self._workload = Workload(
            self._new_client,
            self._topics,
            now_ms=lambda: self._cluster.now_ms,
            found=self._found_if_promised,
            rng=random.Random(f"read again {seed}"),
        )
        acknowledged = TopicLedger()
        #: Applications beside the plain load.
        self.applications = chosen.make_applications(
            applications,
            seed,
            self._surroundings,
            (SAFE, shape.partitions),
            self._workload.ledger,
            acknowledged,
        )
        self._quorum = QuorumInvariants(self._view, found=self._found)
        self._watch = InvariantWatch(
            self._view,
            self._workload.ledger,
            found=self._found,
            keeps_promise=keeps_promise,
            is_metadata_lost=lambda: self._quorum.is_lost,
            topics=acknowledged,
            loose=self._loose_topics,
        )
        self._asker = self._make_asker(seed)
        self._writes: MetadataWrites | None = None
        self._observers: list[ObserverLife] = []
        self._player = self._make_player(seed, shape)

    def _make_player(self, seed: int, shape: Shape) -> FaultPlayer:
        stage = Stage(
            self._cluster,
            self._view,
            topics=self._partitions_by_topic(),
            note=lambda text: self._note("fault", text),
            loose=self._loose_topics(),
        )
        self._workload.rotten = stage.rotten
        operator = OperatorWork(stage, make_client=self._new_client)
        voters = VoterFaults(stage, operator, self._quorum)
        rot = SnapshotRot(stage)
        self._observers += [
            ObserverLife(
                host,
                stage,
                random.Random(f"{host.name} {seed}"),
                name_voters=voters.name_voters,
                loses_end=self._quorum.loses_end,
                forgets_all=self._quorum.forgets_all,
            )
            for host in self._cluster.observers
        ]
        return FaultPlayer(
            stage,
            operator,
            ControllerFaults(stage, self._quorum, rot),
            rot,
            voters,
            AdminWork(stage, operator),
            Budget(keeps_promise=self._keeps_promise, controllers=shape.controllers),
            dirs=shape.dirs,
        )

    def _make_asker(self, seed: int) -> OffsetAsker:
        topics = self._partitions_by_topic().keys() - self._loose_topics()
        return OffsetAsker(
            self._surroundings(),
            self._workload.ledger,
            sorted(topics),
            reused=[FLEETING],
            newest_epoch=self._view.newest_epoch,
            settled_end=self._view.settled_end,
            rng=random.Random(f"offsets {seed}"),
        )

    def _loose_topics(self) -> set[str]:
        """Return the topics of which an unclean election may lose records."""
        return {name for name, topic in self._topics.items() if topic.acks != ACKS_ALL}

    def run(self) -> Outcome:
        outcome, cluster = self.outcome, self._cluster
        try:
            cluster.start()
            cluster.client(_HOST).run(self._play(), timeout_ms=_RUN_MS)
            self._judge_daemons()
            if self._keeps_promise:
                self._judge_blame()
        except Exception as e:
            self._found(f"the run ended: {type(e).__name__}: {e}")
        finally:
            outcome.played, outcome.skipped = self._player.played, self._player.skipped
            assert cluster.world.points is not None
            outcome.fired = cluster.world.points.fired
            outcome.acked = self._workload.ledger.acked
            outcome.rotted = self._player.rotted
            outcome.damages_found = sum(
                event["event"] in _DAMAGE_EVENTS for event in cluster.trace.events
            )
            outcome.virtual_ms = cluster.now_ms
            outcome.trace_hash = cluster.trace.hash
            outcome.story = _merged(outcome.story, cluster)
            cluster.close()
        return outcome

    async def _play(self) -> None:
        await self._make_topics()
        watching = [
            asyncio.create_task(self._watch.run(), name="invariants"),
            asyncio.create_task(self._player.supervise(), name="supervisor"),
        ]
        observing = [
            asyncio.create_task(observer.run(), name="observer") for observer in self._observers
        ]
        watching += observing
        if self._shape.controllers > 1:
            self._writes = MetadataWrites(self._new_client("writer"), LOOSE)
            watching.append(
                asyncio.create_task(self._quorum.run(), name="invariants of the quorum")
            )
            watching.append(asyncio.create_task(self._writes.run(), name="writer"))
        self._workload.start()
        self._asker.start()
        for application in self.applications:
            application.start()
        try:
            await self._break()
            assert self._cluster.world.points is not None
            for name in _DELAYING_POINTS:
                self._cluster.world.points.limit(name, _DELAYS_AT_MOST)
            await self._end_observing(observing)
            if await self._heal():
                await self._finish()
            if self._keeps_promise:
                self._judge_silences()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await self._workload.close()
            await self._asker.close()
            for application in self.applications:
                await application.close()
        if self._is_whole:
            await self._stop_and_judge()

    async def _end_observing(self, observing: Sequence[asyncio.Task[None]]) -> None:
        for task in observing:
            task.cancel()
        await asyncio.gather(*observing, return_exceptions=True)
        if self._cluster.names_voters:
            for observer in self._observers:
                observer.end()

    async def _break(self) -> None:
        """Play the faults. Each must be healed, and its target be in use again, in time."""
        schedule = self.outcome.schedule
        last_ms = max((fault.at_ms + fault.for_ms for fault in schedule), default=0)
        try:
            async with asyncio.timeout((last_ms + HEAL_MS) / 1000):
                await self._player.play(schedule)
        except TimeoutError:
            unmended = "; ".join(map(str, self._player.unmended))
            self._found_if_promised(f"not within {HEAL_MS / 1000:.0f} s: the end of {unmended}")

    async def _make_topics(self) -> None:
        client = self._new_client("operator")
        try:
            for name, partitions in self._partitions_by_topic().items():
                await client.retry(partial(self._make_topic, client, name, partitions))
            if self._shape.crowd:
                await client.retry(partial(self._make_topic, client, "crowd", self._shape.crowd))
            for number in range(self._shape.large_configs):
                await client.retry(partial(self._make_large, client, f"large-{number}"))
        finally:
            await client.close()

    def _partitions_by_topic(self) -> dict[str, int]:
        topics = {name: topic.partitions for name, topic in self._topics.items()}
        for application in self.applications:
            topics |= application.topics
        return topics

    async def _make_topic(self, client: ClusterClient, name: str, partitions: int) -> None:
        try:
            await create_topic(
                client,
                name,
                partitions=partitions,
                replication_factor=3,
                configs=_TOPIC_CONFIGS.get(name, {}),
            )
        except OperatingError as e:
            if e.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    async def _make_large(self, client: ClusterClient, name: str) -> None:
        await self._make_topic(client, name, 1)
        keys = ("leader", "follower")
        changes = [
            ConfigChange(f"{key}.replication.throttled.replicas", _THROTTLED) for key in keys
        ]
        resource = ConfigResource(ResourceType.TOPIC, name)
        await incremental_alter_configs(client, {resource: changes})

    async def _heal(self) -> bool:
        """Wait for recovery; return whether it was in time."""
        ended_ms = self._cluster.now_ms
        self._is_whole = await self._within(HEAL_MS, lambda: self._view.not_whole(self._shape.dirs))
        if self._is_whole:
            self.outcome.healed_ms = self._cluster.now_ms - ended_ms
        return self._is_whole

    async def _finish(self) -> None:
        """Let clients find the current leaders, and then the next ones."""
        if self._keeps_promise:
            await self._player.move_leaders(self._topics)
        began_ms = self._cluster.now_ms
        await self._within(_CONTINUE_MS, lambda: self._silent_since(began_ms))
        try:
            async with asyncio.timeout(_STOP_MS / 1000):
                await self._workload.stop_producing()
                for application in self.applications:
                    await application.stop()
        except TimeoutError:
            self._found_if_promised("a producer was not answered")
        await self._judge_applications()
        await self._within(_STOP_MS, self._view.left_behind)
        if self._keeps_promise:
            await self._within(_STOP_MS, self._workload.unread)

    def _silent_since(self, since_ms: int) -> list[str]:
        silent = self._workload.silent_since(since_ms)
        for application in self.applications:
            silent += application.silent_since(since_ms)
        return silent

    async def _judge_applications(self) -> None:
        """Judge the applications. Without the promise, acknowledged records may be lost."""
        for application in self.applications if self._keeps_promise else ():
            if await self._within(_STOP_MS, application.unsettled):
                for finding in await application.judge():
                    self._found(finding)

    async def _within(self, limit_ms: int, missing: Callable[[], list[str]]) -> bool:
        """Wait until nothing is missing; after ``limit_ms`` report the rest, and return False."""
        deadline_ms = self._cluster.now_ms + limit_ms
        while left := missing():
            if self._cluster.now_ms > deadline_ms:
                self._found_if_promised(
                    f"not within {limit_ms / 1000:.0f} s: {'; '.join(left[:6])}"
                )
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _stop_and_judge(self) -> None:
        # The latest decisions may not be committed yet.
        await self._within(HEAL_MS, lambda: self._view.not_whole(self._shape.dirs))
        self._watch.look()
        if await self._within(_STOP_MS, self._view.not_replayed):
            self._watch.judge_replays()
        if self._writes is not None:
            self._quorum.look()
            self._quorum.judge_replays()
            self._quorum.judge_answers(self._writes.answered)
            self._quorum.judge_snapshots()
        hosts = self._cluster.brokers
        disks = {number: self._disks_of(host) for number, host in hosts.items()}
        await self._within(_STOP_MS, lambda: self._watch.left_over(disks, self._wall_ms))
        await self._within(_STOP_MS, self._left_at_rest)
        await self._stop_all(list(hosts.values()))
        for path in (path for of_broker in disks.values() for path in of_broker):
            self._cluster.disks[path].vfs.drop_caches()
        self._watch.judge_at_rest(disks)
        await self._stop_all([*self._cluster.controllers, *self._cluster.observers])

    def _disks_of(self, host: SimulatedBroker | SimulatedController) -> dict[str, MemVfs]:
        paths = host.log_dirs if isinstance(host, SimulatedBroker) else tuple(host.disks)
        return {path: host.disks[path].vfs for path in paths}

    def _left_at_rest(self) -> list[str]:
        """Return the remains of ended operations on disks, and their open files."""
        left = []
        for host in (*self._cluster.controllers, *self._cluster.observers):
            left += unfinished(self._disks_of(host))
        for number, broker in self._cluster.brokers.items():
            left += unfinished(self._disks_of(broker))
            if broker.process is not None:
                everything = {path: disk.vfs for path, disk in broker.disks.items()}
                hosted = self._view.hosted_names(number)
                left += left_open(broker.name, broker.process.open_files, everything, hosted)
        return left

    async def _stop_all(self, hosts: Sequence[SimulatedNode]) -> None:
        """Stop daemons in order, concurrently, and judge each before and after its stop."""
        running = [(host, host.process) for host in hosts if host.process is not None]
        for _, process in running:
            self._judge_leaks(process.name, process.thread_names, process.tasks, _MOST_TASKS)
        for host in hosts:
            host.stop()
        await self._within(_STOP_MS, lambda: [f"{host.name} is up" for host in hosts if host.is_up])
        for host, process in running:
            self._judge_leaks(f"ended {process.name}", process.thread_names, process.tasks, 0)
            # A broker that stops cancels scrubs and leaves files of retired segments to the end of
            # the process; the files that brokers have open at rest were judged before.
            if isinstance(host, SimulatedController) and process.left_open:
                self._found(f"{process.name} ended with {', '.join(process.left_open[:3])} open")

    def _wall_ms(self, broker: int) -> int:
        offset_ms = self._cluster.brokers[broker].wall_offset_ms
        return WORLD_BEGAN_MS + self._cluster.now_ms + offset_ms

    def _judge_leaks(
        self, name: str, threads: Sequence[str], tasks: Sequence[str], most_tasks: int
    ) -> None:
        """Judge that replaced threads and tasks have ended."""
        twice = sorted(thread for thread, count in Counter(threads).items() if count > 1)
        if twice:
            self._found(f"{name} has threads twice: {', '.join(twice)}")
        if len(tasks) > most_tasks:
            found = ", ".join(f"{task} {n}" for task, n in Counter(tasks).most_common(5))
            self._found(f"{name} has {len(tasks)} tasks: {found}")

    def _judge_silences(self) -> None:
        """Judge gaps, except with buggify points: a lost answer costs its request's timeout."""
        points = self._cluster.world.points
        if points is not None and points.fired:
            return
        topic = self._topics[SAFE]
        for partition in range(topic.partitions):
            acked_ms = self._workload.ledger.acked_ms(SAFE, partition)
            for finding in silences(
                f"{SAFE}-{partition}", acked_ms, self._player.history, pause_ms=topic.pause_ms
            ):
                self._found(finding)

    def _judge_blame(self) -> None:
        """Judge that only directories with a struck disk went offline."""
        history = [(one.began_ms, one.fault) for one in self._player.history]
        history += [(0, fault) for fault in self._player.budget.active]
        paths = {
            (host.name, path): (broker, directory)
            for broker, host in self._cluster.brokers.items()
            for directory, path in enumerate(host.log_dirs)
        }
        for event in self._cluster.trace.events:
            where = paths.get((event["host"], event.get("log_dir", "")))
            if event["event"] != "log_dir_offline" or where is None:
                continue
            begun = [fault for began_ms, fault in history if began_ms <= event["at_ms"]]
            if is_blamed(*where, begun):
                self._found(f"{event['log_dir']} went offline for no fault: {event['reason']}")

    def _judge_daemons(self) -> None:
        """Report unhandled exceptions of daemons, and events with a traceback."""
        for event in self._cluster.trace.events:
            if "exception" in event:
                self._found(f"{event['host']} met a bug: {event['event']}: {event['exception']}")
            if event["event"] == "loop_complaint":
                self._found(f"{event['host']} left an error unhandled: {_fields(event)}")
        for host in self._cluster.hosts.values():
            for process in host.past:
                for complaint in process.loop.complaints:
                    self._found(f"{host.name}: unhandled error {complaint}")
                if process.error is not None:
                    self._found(f"{host.name} ended by {process.error!r}")

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self._new_client,
            now_ms=lambda: self._cluster.now_ms,
            found=self._found_if_promised,
            note=lambda text: self._note("client", text),
        )

    def _new_client(self, name: str) -> ClusterClient:
        return self._cluster.client(_HOST).new_kafka(
            client_id=name, request_timeout_ms=_REQUEST_TIMEOUT_MS, retry_timeout_ms=_RUN_MS
        )

    def _note(self, who: str, text: str) -> None:
        self.outcome.story.append(f"{self._cluster.now_ms / 1000:10.3f} {who:<12} {text}")

    def _found_if_promised(self, sentence: str) -> None:
        """Report a finding unless faults exceed the promise: an operator may be needed then."""
        if self._keeps_promise:
            self._found(sentence)
        else:
            self._note("lost", sentence)

    def _found(self, sentence: str) -> None:
        self.outcome.findings.append(sentence)
        self._note("FOUND", sentence)


def _make_cluster(seed: int, shape: Shape, *, is_light: bool) -> SimulatedCluster:
    segment_bytes = random.Random(f"segments {seed}").choice(
        _LIGHT_SEGMENT_BYTES if is_light else _SEGMENT_BYTES
    )
    rng = random.Random(f"logs {seed}")
    intervals = {key: rng.choice(values) for key, values in _LOG_INTERVALS.items()}
    config = CONFIG | {"log.segment.bytes": str(segment_bytes)} | intervals
    is_large = bool(shape.crowd or shape.large_configs)
    cluster = SimulatedCluster(
        seed,
        shape.controllers,
        shape.brokers,
        shape.dirs,
        observers=shape.observers,
        metadata_version=OLDER_VERSION if shape.is_mixed else DEFAULT_METADATA_VERSION,
        config=config | (_LARGE_CONFIG if is_large else {}),
    )
    if shape.is_mixed:
        nodes = [*cluster.brokers.values(), *cluster.controllers]
        random.Random(f"mixed {seed}").choice(nodes).features = OLDER_FEATURES
    if not is_large:
        _draw_settings(seed, cluster.controllers)
    _draw_costs(random.Random(f"costs {seed}"), cluster, is_large=is_large)
    return cluster


def _draw_costs(rng: random.Random, cluster: SimulatedCluster, *, is_large: bool) -> None:
    iteration_us, us_per_byte = rng.choice(_ITERATION_US), rng.choice(_US_PER_BYTE)
    # The metadata of a large world has its real size.
    disk_costs = _DISK_COSTS[0] if is_large else rng.choice(_DISK_COSTS)
    for host in cluster.hosts.values():
        host.iteration_us, host.us_per_byte = iteration_us, us_per_byte
        for disk in host.disks.values():
            disk.costs = disk_costs


def _count_calls(rng: random.Random, cluster: SimulatedCluster) -> None:
    """Let computing of the daemons take the time of its Python calls."""
    cluster.world.meter = CallMeter()
    us_per_call = rng.choice(_US_PER_CALL)
    for host in cluster.hosts.values():
        host.us_per_call = us_per_call
        host.iteration_us = max(host.iteration_us, _COUNTED_ITERATION_US)


def _loaded_topics(seed: int, partitions: int, pause_ms: int) -> dict[str, LoadedTopic]:
    topics = [
        LoadedTopic(name=SAFE, partitions=partitions),
        LoadedTopic(name=LOOSE, partitions=1, acks=1),
    ]
    if random.Random(f"blind {seed}").random() < _BLIND:
        topics.append(LoadedTopic(name=BLIND, partitions=1, acks=ACKS_NONE))
    padding_bytes = random.Random(f"padding {seed}").choice(_PADDING_BYTES)
    return {
        topic.name: dataclasses.replace(topic, pause_ms=pause_ms, padding_bytes=padding_bytes)
        for topic in topics
    }


def _draw_settings(seed: int, controllers: Sequence[SimulatedController]) -> None:
    """Give each controller different settings in some seeds."""
    rng = random.Random(f"settings {seed}")
    if rng.random() < _DIFFERENT_SETTINGS:
        for host in controllers:
            host.properties |= {key: rng.choice(values) for key, values in _SETTINGS.items()}


def _merged(story: list[str], cluster: SimulatedCluster) -> list[str]:
    """Merge the story with the daemons' events, in order of time."""
    acknowledged = [
        f"{event['at_ms'] / 1000:10.3f} {event['host']:<12} {event['event']} {_fields(event)}"
        for event in cluster.trace.events
    ]
    return sorted([*story, *acknowledged], key=lambda line: float(line.split(maxsplit=1)[0]))


def _fields(event: dict[str, Any]) -> str:
    left_out = ("host", "at_ms", "event", "timestamp", "level")
    return " ".join(f"{key}={value}" for key, value in event.items() if key not in left_out)
