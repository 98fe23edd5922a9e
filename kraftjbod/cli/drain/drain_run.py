"""WIRE. Runs ``kraftjbod-drain``: cordons, plans, moves and checks, repeatedly until all is moved.

Every round reads the cluster again. So the same command resumes an interrupted drain, and later
changes and failures become part of the next plan. The reassignment tool's code makes the moves; its
lines go to standard error here.

A whole broker can be drained whether it is alive or not: metadata has its partitions, and the new
replicas are copied from the leaders. Draining a directory needs its broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.clients.cluster_admin import partitions_on
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceType,
    describe_configs,
    incremental_alter_configs,
)
from kraftjbod.cli.clients.replica_admin import (
    LogDirDescription,
    describe_log_dirs,
    list_partition_reassignments,
    registered_brokers,
)
from kraftjbod.cli.drain.drain_plan import DrainPlan, plan_drain
from kraftjbod.cli.drain.drain_state import (
    Snapshot,
    Source,
    as_reassignment,
    dirs_of,
    find_source,
    has_lost_targets,
    leaderless,
    leaving,
    obstacles,
    open_places_for,
    scope_of,
)
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
)
from kraftjbod.cli.reassignment.reassignment_progress import Copying, StalledError, follow
from kraftjbod.cli.reassignment.reassignment_run import (
    ExecuteOptions,
    RefusedError,
    cancel,
    copies_under_way,
    execute,
)
from kraftjbod.cli.reassignment.reassignment_status import is_offline, locate
from kraftjbod.cli.reassignment.reassignment_throttles import clear_throttles
from kraftjbod.cli.terminal.command import Answer, report
from kraftjbod.core.config import CORDONED_LOG_DIRS
from kraftjbod.core.config_model import list_items
from kraftjbod.core.errors import KraftJbodError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.node_config import ALL_LOG_DIRS

#: Configuration keys with the space that each directory of a broker keeps free.
_KEPT_FREE_KEYS: Final = ("log.dir.min.free.bytes", "log.dir.reserve.bytes")
_ASK_FOR_MS: Final = 30_000
_MAX_SHOWN: Final = 20

Configs = dict[str, ConfigEntry]


class DoesNotFitError(KraftJbodError):
    """Some replicas have no place elsewhere; ``plan`` has the details."""

    def __init__(self, plan: DrainPlan) -> None:
        super().__init__(f"{len(plan.misfits)} replicas do not fit elsewhere")
        self.plan = plan


class _TargetBrokerGoneError(KraftJbodError):
    """A broker that should receive a replica is down, so another plan is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """Options of a drain.

    * ``throttle``: bytes per second and broker; None leaves the rates unchanged.
    * ``across_brokers``: replicas of a drained directory may move to other brokers.
    * ``poll_ms``: interval at which the cluster is read.
    * ``settle_ms``: time limit for the broker to apply the cordon. Also the time without any
      progress after which the drain is abandoned.
    """

    throttle: int | None = None
    across_brokers: bool = False
    poll_ms: int = 500
    settle_ms: int = 60_000

    @property
    def rounds(self) -> int:
        """Number of rounds without progress after which the drain is abandoned."""
        return self.settle_ms // self.poll_ms


class Drain:
    """Moves all replicas out of ``source``, a log directory or a broker, which is cordoned first.

    :meth:`find` creates it after a check of the source. ``report`` prints a line of progress.
    """

    def __init__(
        self,
        client: ClusterClient,
        source: Source,
        options: DrainOptions,
        *,
        report: Callable[[str], None],
    ) -> None:
        self._client = client
        self.source = source
        self._options = options
        self._report = report
        self._resource = ConfigResource(ResourceType.BROKER, str(source.broker_id))

    @classmethod
    async def find(
        cls,
        client: ClusterClient,
        broker_id: int,
        directory: str | None,
        options: DrainOptions,
        *,
        report: Callable[[str], None],
    ) -> Drain:
        """Return the drain of a broker or directory, after a check that it can be drained.

        :param directory: path or id of a directory; None for the whole broker.
        :raises ReassignmentError: it cannot be drained; the message names the possible sources.
        """
        metadata = await client.retry(client.refresh_metadata)
        if broker_id not in metadata.brokers:
            alive = ", ".join(map(str, sorted(metadata.brokers)))
            if directory is not None:
                raise ReassignmentError(
                    f"broker {broker_id} does not run, so replicas cannot leave its directories;"
                    f" --broker {broker_id} drains all of it to the brokers that are: {alive}"
                )
            registered = await client.retry(lambda: registered_brokers(client))
            if broker_id not in registered and not partitions_on(broker_id, metadata):
                raise ReassignmentError(
                    f"there is no broker {broker_id}: none of that id is registered, and no "
                    f"partition has a replica on it; alive: {alive}"
                )
        source = Source(broker_id=broker_id)
        if directory is not None:
            found = await client.retry(lambda: describe_log_dirs(client, broker_id))
            source = find_source(broker_id, directory, {broker_id: found})
        return cls(client, source, options, report=report)

    @property
    def is_alive(self) -> bool:
        """Whether the drained broker was alive when the cluster was read last."""
        return self.source.broker_id in self._client.metadata.brokers

    # --- planning --------------------------------------------------------------------------------

    async def plan(self) -> DrainPlan:
        """Return the moves that a run would make now; nothing is changed.

        :raises RefusedError: a directory is drained, and its broker is not alive.
        :raises OperatingError: a broker does not answer.
        """
        return self._planned(await self._read())

    def _planned(self, snapshot: Snapshot) -> DrainPlan:
        return plan_drain(
            leaving(self.source, snapshot),
            open_places_for(self.source, snapshot),
            scope=scope_of(self.source, across_brokers=self._options.across_brokers),
            racks=snapshot.racks,
        )

    async def _read(self) -> Snapshot:
        """Read the state of the cluster.

        :raises RefusedError: the broker of a drained directory is not alive.
        """
        return await self._client.retry(self._read_once)

    async def _read_once(self) -> Snapshot:
        client = self._client
        metadata = await client.refresh_metadata()
        if self.source.path is not None and self.source.broker_id not in metadata.brokers:
            raise RefusedError(
                f"broker {self.source.broker_id} left the cluster; its moves continue when it "
                "returns, then run the same command again"
            )
        log_dirs, kept = {}, {}
        for broker in sorted(metadata.brokers):
            try:
                kept[broker] = kept_free(await self._configs_of(broker))
                log_dirs[broker] = await describe_log_dirs(client, broker)
            except OperatingError as e:
                if broker == self.source.broker_id:
                    raise
                self._report(f"broker {broker} takes nothing, for it does not answer: {e.message}")
        return Snapshot(
            metadata=metadata,
            ongoing=await list_partition_reassignments(client),
            log_dirs=log_dirs,
            kept_free=kept,
        )

    async def _configs_of(self, broker: int) -> Configs:
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        return (await describe_configs(self._client, [resource]))[resource]

    # --- draining --------------------------------------------------------------------------------

    async def run_drain(self) -> int:
        """Drain the source, and return the number of moved replicas.

        :raises DoesNotFitError: a replica has no place elsewhere. Before the first move, this run's
            cordon is removed. Later the cordon remains.
        :raises KraftJbodError: other failures; the same command resumes the drain.
        """
        take_back = await self._cordon()
        snapshot = await self._read()
        plan = self._planned(snapshot)
        if plan.misfits:
            if take_back is not None:
                await take_back()
            raise DoesNotFitError(plan)
        stuck = leaderless(self.source, snapshot)
        if stuck:
            self._report(
                f"{len(stuck)} partitions cannot be copied yet, because they have no leader: "
                + ", ".join(map(str, stuck[:_MAX_SHOWN]))
            )
        moved: set[Replica] = set()
        rounds = self._options.rounds
        while left := obstacles(self.source, snapshot):
            plan = self._planned(snapshot)
            if rounds <= 0 and plan.misfits:
                raise DoesNotFitError(plan)
            if rounds <= 0:
                shown = "; ".join(left[:_MAX_SHOWN])
                raise StalledError(f"{self.source} is not empty, and nothing moves: {shown}")
            moved |= {move.replica for move in plan.moves}
            await self._advance(plan, snapshot)
            await asyncio.sleep(self._options.poll_ms / 1000)
            snapshot = await self._read()
            is_nearer = len(obstacles(self.source, snapshot)) < len(left)
            rounds = self._options.rounds if is_nearer else rounds - 1
        await self._end_throttles()
        return len(moved)

    async def _advance(self, plan: DrainPlan, snapshot: Snapshot) -> None:
        """Start new moves, and follow all moves until they end or another plan is needed."""
        order = as_reassignment(plan, self.source, snapshot)
        by_themselves = _leaving_by_themselves(self.source, snapshot)
        try:
            if any(not move.is_under_way for move in plan.moves) or (
                order.replicas and not plan.moves
            ):
                await self._order(order)
            await self._follow(
                ReassignmentPlan(
                    replicas={**by_themselves.replicas, **order.replicas}, log_dirs=order.log_dirs
                )
            )
        except StalledError:
            raise
        except KraftJbodError as e:
            # A broker, a directory or a topic disappeared; the next round reads the rest.
            self._report(f"{e}; planning again")

    async def _order(self, order: ReassignmentPlan) -> None:
        is_within = {replica.broker_id for replica in order.log_dirs} == {self.source.broker_id}
        rate = self._options.throttle
        options = ExecuteOptions(
            timeout_ms=_ASK_FOR_MS,
            throttle=None if is_within else rate,
            mover_throttle=rate if is_within else None,
            is_additional=True,
        )
        await execute(self._client, Answer(report=report), order, options)

    async def _follow(self, order: ReassignmentPlan) -> None:
        async def seen() -> list[Copying]:
            under_way = await copies_under_way(self._client, order)
            snapshot = Snapshot(
                metadata=self._client.metadata,
                ongoing=await list_partition_reassignments(self._client, order.replicas),
                log_dirs={},
            )
            if has_lost_targets(self.source, snapshot):
                raise _TargetBrokerGoneError("a broker that shall receive replicas went away")
            return under_way

        await follow(seen, sample_ms=self._options.poll_ms)

    async def _end_throttles(self) -> None:
        if self._options.throttle is not None:
            metadata = await self._client.retry(self._client.refresh_metadata)
            every = {
                TopicPartition(name, index): partition.replicas
                for name, topic in metadata.topics.items()
                for index, partition in topic.partitions.items()
            }
            order = ReassignmentPlan(replicas=every)
            await clear_throttles(self._client, Answer(report=report), order, metadata)

    # --- cordons ---------------------------------------------------------------------------------

    async def _cordon(self) -> Callable[[], Awaitable[None]] | None:
        """Cordon the source; return a function that restores the previous cordons.

        None means that the source was cordoned already, or that its broker is not alive.

        :raises StalledError: the broker does not apply the cordon within ``settle_ms``.
        """
        source = self.source
        # A controller refuses new cordons of a broker that is not alive (KIP-1066). New replicas
        # go to such a broker only where too few others are alive, and the next round moves them.
        if not self.is_alive or all(log_dir.is_cordoned for log_dir in await self._drained_dirs()):
            return None
        before = await self._own_cordons()
        if source.path is None:
            change = ConfigChange(CORDONED_LOG_DIRS, ALL_LOG_DIRS)
        else:
            change = ConfigChange(CORDONED_LOG_DIRS, source.path, ConfigOperation.APPEND)
        await self._alter(change)
        self._report(f"{source} is cordoned: it takes no new replicas")
        deadline_ms = _now_ms() + self._options.settle_ms
        while not all(log_dir.is_cordoned for log_dir in await self._drained_dirs()):
            if _now_ms() > deadline_ms:
                raise StalledError(f"broker {source.broker_id} does not heed {CORDONED_LOG_DIRS}")
            await asyncio.sleep(self._options.poll_ms / 1000)

        async def take_back() -> None:
            operation = ConfigOperation.DELETE if before is None else ConfigOperation.SET
            await self._alter(ConfigChange(CORDONED_LOG_DIRS, before, operation))
            self._report(f"{source} is not cordoned any more")

        return take_back

    async def _drained_dirs(self) -> list[LogDirDescription]:
        """Return the drained directories that are not offline.

        If the broker is not alive, return its registered directories.
        """
        client, source = self._client, self.source
        if self.is_alive:
            found = await client.retry(lambda: describe_log_dirs(client, source.broker_id))
            return [d for d in found if source.path in (None, d.path) and not is_offline(d)]
        registered = (await client.retry(lambda: registered_brokers(client))).get(source.broker_id)
        return [] if registered is None else registered.log_dirs

    async def _own_cordons(self) -> str | None:
        """Return this broker's own dynamic value of ``cordoned.log.dirs``; None without one.

        If the broker is not alive, all its cordons in the metadata count as dynamic.
        """
        if not self.is_alive:
            cordoned = [d.path for d in await self._drained_dirs() if d.is_cordoned]
            return ",".join(cordoned) or None
        entry = (await self._configs_of(self.source.broker_id)).get(CORDONED_LOG_DIRS)
        for synonym in entry.synonyms if entry is not None else ():
            if synonym.source is ConfigSource.DYNAMIC_BROKER_CONFIG:
                return synonym.value or ""
        return None

    async def _alter(self, change: ConfigChange) -> None:
        client = self._client
        await client.retry(lambda: incremental_alter_configs(client, {self._resource: [change]}))

    # --- the end, and the way back ---------------------------------------------------------------

    async def has_metadata(self) -> bool:
        """Return whether the broker reports that its own metadata is in the drained directory."""
        configs = await self._configs_of(self.source.broker_id)
        entry = configs.get("metadata.log.dir")
        if entry is not None and entry.value:
            return entry.value == self.source.path
        found = configs.get("log.dirs") or configs.get("log.dir")
        dirs = list_items(found.value or "") if found is not None else []
        return dirs[:1] == [self.source.path]

    async def cancel(self) -> int:
        """Cancel moves out of the source, lift the cordon, and return the number of cancelled
        moves.

        If the source is a whole broker, all its dynamic cordons are removed, also those that an
        operator set.

        :raises RefusedError: as :meth:`plan`.
        :raises OperatingError: a broker does not answer, or the cluster refuses a request.
        """
        snapshot = await self._read()
        order = _on_the_way_out(self.source, snapshot)
        if order.replicas:
            await cancel(
                self._client,
                Answer(report=report),
                order,
                preserve_throttles=False,
                timeout_ms=_ASK_FOR_MS,
            )
        before = await self._own_cordons()
        if before is not None:
            await self._uncordon(before)
        return len(order.replicas)

    async def _uncordon(self, before: str) -> None:
        path = self.source.path
        left = [item for item in list_items(before) if path is not None and item != path]
        if path is not None and left == list_items(before):
            if ALL_LOG_DIRS in left:
                self._report(f"{CORDONED_LOG_DIRS} is {before} and stays so")
            return
        operation = ConfigOperation.SET if left else ConfigOperation.DELETE
        await self._alter(ConfigChange(CORDONED_LOG_DIRS, ",".join(left) or None, operation))
        self._report(f"{self.source} is not cordoned any more")


def kept_free(configs: Configs) -> int:
    """Return the bytes that each directory of a broker keeps free; 0 if it has no such keys."""
    values = (configs[key].value or "0" for key in _KEPT_FREE_KEYS if key in configs)
    return sum(int(value) for value in values)


def _leaving_by_themselves(source: Source, snapshot: Snapshot) -> ReassignmentPlan:
    return ReassignmentPlan(
        replicas={
            partition: tuple(b for b in ongoing.replicas if b not in ongoing.removing)
            for partition, ongoing in snapshot.ongoing.items()
            if source.broker_id in ongoing.removing
        }
    )


def _on_the_way_out(source: Source, snapshot: Snapshot) -> ReassignmentPlan:
    """Return the moves in progress that a drain of ``source`` may have started."""
    paths = {log_dir.path for log_dir in dirs_of(source, snapshot)}
    away = dict(_leaving_by_themselves(source, snapshot).replicas)
    log_dirs = {}
    for replica, where in locate(snapshot.log_dirs).items():
        if replica.broker_id != source.broker_id or where.current_dir not in paths:
            continue
        if source.path is not None and where.future_dir is not None:
            log_dirs[replica] = where.future_dir
            away.setdefault(
                replica.topic_partition,
                snapshot.metadata.topic(replica.topic).partitions[replica.partition].replicas,
            )
    return ReassignmentPlan(replicas=away, log_dirs=log_dirs)


def _now_ms() -> int:
    return round(time.monotonic() * 1000)
