"""``AdminWork``: work of an administrator on a whole cluster during faults.

Unregistered brokers, reassignments that are started, replaced, cancelled or completed, elections of
preferred and of unclean leaders, feature levels that are lowered and raised, and settings that
change while daemons run. Each kind of work restores the former state of the cluster at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.broker.transactions.transaction_records import TRANSACTIONS_TOPIC
from kraftjbod.cli.clients.cluster_admin import (
    ElectionType,
    UpgradeType,
    create_partitions,
    delete_topic,
    elect_leaders,
    unregister_broker,
    update_features,
)
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.cli.clients.replica_admin import Reassignment, alter_partition_reassignments
from kraftjbod.core.config import UNCLEAN_LEADER_ELECTION
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.metadata_version import (
    DEFAULT_METADATA_VERSION,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    MetadataVersion,
)
from kraftjbod.testing.simulation.simulated_cluster import SimulatedNode
from kraftjbod.testing.simulation.simulated_host import SimulatedProcess
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.stage import POLL_S, Plays, Stage, wait

_ALL_NODES: Final = ConfigResource(ResourceType.BROKER, "")
#: Settings that every daemon applies while it runs.
_SETTINGS: Final = (
    ("broker.session.timeout.ms", ("1500", "2000", "6000", "9000")),
    ("broker.reconnect.grace.ms", ("0", "300", "3000")),
    ("replica.lag.time.max.ms", ("2000", "8000")),
    ("leader.imbalance.check.interval.seconds", ("1", "60")),
    ("metadata.log.max.record.bytes.between.snapshots", ("800", "100000")),
    ("metadata.max.fetch.bytes", ("1024",)),
)
#: Time limit until a broker that is to be unregistered is fenced.
_FENCED_S: Final = 15.0
OLDER_VERSION: Final = MetadataVersion.IV_4_3_IV0
OLDER_FEATURES: Final = {
    **SUPPORTED_FEATURES,
    METADATA_VERSION: (SUPPORTED_FEATURES[METADATA_VERSION][0], OLDER_VERSION.value),
}
"""Features of a node that does not support registrations of controllers."""
_ALLOW_UNCLEAN: Final = ConfigChange(UNCLEAN_LEADER_ELECTION, "true")
_FORBID_UNCLEAN: Final = ConfigChange(UNCLEAN_LEADER_ELECTION, None, ConfigOperation.DELETE)
_REPLACED_SOFTWARE: Final = 0.3
_CANCELLED: Final = 0.3
_REPLACED: Final = 0.3
_UNREGISTERED_BY_KILL: Final = 0.5
#: Share of the brokers that an administrator tries to unregister before they are fenced, and of
#: those that are unregistered within milliseconds afterwards.
_UNREGISTERED_ALIVE: Final = 0.3
_UNREGISTERED_HASTILY: Final = 0.6
_HASTY_POLL_S: Final = 0.001
#: Share of the unclean elections that the topic's configuration causes.
_ELECTED_BY_CONTROLLER: Final = 0.5
#: Level without cordons and eligible leader replicas.
_LOSSY_VERSION: Final = MetadataVersion.IV_3_7_IV2
#: Share of the requests about a topic of coordinators that would grow it. Others would delete it.
_GROWN: Final = 0.7


class AdminWork:
    """The work of administrators during faults."""

    def __init__(self, stage: Stage, operator: OperatorWork) -> None:
        self._stage = stage
        self._operator = operator
        #: The process that still runs the older software after that was replaced on its host.
        self._older_process: SimulatedProcess | None = None

    def plays(self) -> Plays:
        return {
            Kind.UNREGISTER: self._unregister,
            Kind.REASSIGN: self._reassign,
            Kind.ELECT: self._elect,
            Kind.UNCLEAN_ELECTION: self._elect_unclean,
            Kind.CANCEL_UNCLEAN: self._cancel_unclean,
            Kind.DOWNGRADE: self._downgrade,
            Kind.LOSSY_DOWNGRADE: self._downgrade_with_loss,
            Kind.SETTINGS: self._change_settings,
            Kind.COORDINATED: self._misuse_coordinators,
        }

    async def _until_done(
        self,
        what: str,
        question: Callable[[ClusterClient], Awaitable[None]],
        *,
        but: tuple[ErrorCode, ...] = (),
    ) -> None:
        """:param but: codes that mean that the request is already fulfilled."""
        while (code := await self._operator.ask(what, question)) is not None and code not in but:
            await asyncio.sleep(POLL_S)

    # --- brokers ---------------------------------------------------------------------------------

    async def _unregister(self, fault: Fault) -> None:
        """Unregister a broker, which registers again at its start. Its replicas stay assigned."""
        stage, host, rng = self._stage, self._stage.host(fault), fault.rng()
        is_hasty = rng.random() < _UNREGISTERED_HASTILY

        async def unregister(client: ClusterClient) -> None:
            await unregister_broker(client, fault.broker)

        async def unregister_once_fenced(client: ClusterClient) -> None:
            """A hasty request may overtake the changes of partitions that the fencing causes."""
            while not self._is_fenced(fault.broker):
                await asyncio.sleep(_HASTY_POLL_S if is_hasty else POLL_S)
            await unregister(client)

        async with stage.broker_down(fault.broker):
            if rng.random() < _UNREGISTERED_BY_KILL:
                host.kill()
            else:
                await stage.stop_host(host)
            if rng.random() < _UNREGISTERED_ALIVE:
                await self._operator.ask(f"unregister broker {fault.broker}, alive", unregister)
            await self._operator.ask(f"unregister broker {fault.broker}", unregister_once_fenced)
            await wait(fault)

    def _is_fenced(self, broker: int) -> bool:
        state = self._stage.view.decided()
        found = None if state is None else state.brokers.get(BrokerId(broker))
        return found is None or found.fenced

    # --- reassignments ---------------------------------------------------------------------------

    async def _reassign(self, fault: Fault) -> None:
        """Reassign to fewer or other brokers, and at the end to as many as before."""
        rng, brokers = fault.rng(), self._stage.view.broker_ids
        tp = rng.choice(self._stage.some_partitions(rng))
        await self._ask_to_reassign(tp, rng.sample(brokers, rng.choice((2, 3))))
        await asyncio.sleep(fault.for_ms * rng.random() / 1000)
        if rng.random() < _REPLACED:
            await self._ask_to_reassign(tp, rng.sample(brokers, rng.choice((2, 3))))
        await wait(fault)
        target = rng.sample(brokers, 3)
        if rng.random() < _CANCELLED:
            await self._ask_to_reassign(tp, target)
            await asyncio.sleep(rng.random() * POLL_S)
            await self._ask_to_reassign(tp, None)
        await self._until_three_replicas(tp, target)

    async def _until_three_replicas(self, tp: TopicPartition, target: list[int]) -> None:
        done = (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        while not self._has_three_replicas(tp):
            if await self._ask_to_reassign(tp, target) not in done:
                await asyncio.sleep(POLL_S)
                continue
            for _ in range(20):
                if self._has_three_replicas(tp):
                    return
                await asyncio.sleep(POLL_S)

    def _has_three_replicas(self, tp: TopicPartition) -> bool:
        """Whether the partition has three replicas or its topic is deleted."""
        found = [one for known, one, _ in self._stage.view.partitions() if known == tp]
        state = self._stage.view.decided()
        if not found:
            return state is not None
        return len(found[0].replicas) == 3 and not found[0].is_reassigning

    async def _ask_to_reassign(
        self, tp: TopicPartition, replicas: list[int] | None
    ) -> ErrorCode | None:
        """:param replicas: new replicas; None to cancel the present reassignment."""

        async def reassign(client: ClusterClient) -> None:
            request = Reassignment(topic_partition=tp, replicas=replicas)
            for error in (await alter_partition_reassignments(client, [request])).values():
                raise error

        return await self._operator.ask(f"reassign {tp} to {replicas}", reassign)

    # --- elections -------------------------------------------------------------------------------

    async def _elect(self, fault: Fault) -> None:
        """Elect preferred leaders of some or all partitions. Unclean elections are not needed."""
        rng = fault.rng()
        some = self._stage.some_partitions(rng) if rng.random() < 0.7 else None
        kind = ElectionType.PREFERRED if rng.random() < 0.7 else ElectionType.UNCLEAN
        if kind is ElectionType.UNCLEAN:
            some = [tp for tp in some or () if tp.topic in self._stage.loose]
        await self._ask_to_elect(kind, some)
        await wait(fault)

    async def move_leaders(self, topics: Collection[str]) -> None:
        """Let the next replica of each partition lead, while the former leader serves on."""
        found = [(tp, list(one.replicas)) for tp, one, _ in self._stage.view.partitions(topics)]
        for tp, replicas in found:
            await self._ask_to_reassign(tp, [*replicas[1:], replicas[0]])
        await self._ask_to_elect(ElectionType.PREFERRED, [tp for tp, _ in found])

    async def _ask_to_elect(self, kind: ElectionType, some: list[TopicPartition] | None) -> bool:
        """Return whether a partition has another leader after the request."""
        elected: list[TopicPartition] = []

        async def elect(client: ClusterClient) -> None:
            answers = await elect_leaders(client, kind, some)
            elected.extend(tp for tp, error in answers.items() if error is None)

        what = "all partitions" if some is None else " ".join(map(str, some))
        await self._operator.ask(f"elect {kind.name.lower()} leaders of {what}", elect)
        return bool(elected)

    async def _elect_unclean(self, fault: Fault) -> None:
        """Let a broker without the newest records lead a loose topic; then the others return."""
        stage, brokers, rng = self._stage, self._stage.view.broker_ids, fault.rng()
        others = [one for one in brokers if one != fault.broker]
        rng.shuffle(others)
        is_automatic = rng.random() < _ELECTED_BY_CONTROLLER
        if is_automatic:
            await self._operator.alter_loose(_ALLOW_UNCLEAN)
        stage.down.update(brokers)
        try:
            for broker in (fault.broker, *others):
                await stage.stop_host(stage.cluster.brokers[broker])
                await asyncio.sleep(rng.random())
            stage.down[fault.broker] -= 1
            await stage.until_serving(fault.broker)
            for _ in range(round(_FENCED_S / POLL_S)):
                if is_automatic and self._is_led(stage.loose_partitions):
                    break
                if not is_automatic and await self._ask_to_elect(
                    ElectionType.UNCLEAN, stage.loose_partitions
                ):
                    break
                await asyncio.sleep(POLL_S)
            await wait(fault)
        finally:
            for broker in others:
                stage.down[broker] -= 1
                stage.start(broker)
        for broker in brokers:
            await stage.until_serving(broker)
        if is_automatic:
            await self._operator.alter_loose(_FORBID_UNCLEAN)

    def _is_led(self, partitions: Collection[TopicPartition]) -> bool:
        return all(
            one.has_leader for tp, one, _ in self._stage.view.partitions() if tp in partitions
        )

    async def _cancel_unclean(self, fault: Fault) -> None:
        """Cancel a reassignment of a loose partition whose original replicas are not in sync.

        One of them stopped before the added replica was in sync. It is back, but cut off from the
        leader, which is the added replica. The other one stopped later and is unregistered.
        """
        stage, rng, gone = self._stage, fault.rng(), fault.broker
        tp = rng.choice(stage.loose_partitions)
        back, added = rng.sample([one for one in stage.view.broker_ids if one != gone], 2)
        names = [stage.cluster.brokers[one].name for one in (back, added)]
        await self._operator.alter_loose(_ALLOW_UNCLEAN)
        await self._ask_to_reassign(tp, [gone, back])
        await self._until(lambda: self._has_replicas(tp, {gone, back}))
        stage.down.update((gone, back))
        try:
            await stage.stop_host(stage.cluster.brokers[back])
            await self._ask_to_reassign(tp, [added, back])
            await self._until(lambda: added in self._in_sync(tp))
            await stage.stop_host(stage.cluster.brokers[gone])
            await self._until(lambda: self._is_fenced(gone))

            async def unregister(client: ClusterClient) -> None:
                await unregister_broker(client, gone)

            await self._operator.ask(f"unregister broker {gone}", unregister)
            stage.cluster.network.partition(*names)
            stage.down[back] -= 1
            await stage.until_serving(back)
            await self._until(lambda: not self._is_fenced(back))
            await self._ask_to_reassign(tp, None)
            await wait(fault)
        finally:
            stage.cluster.network.heal(*names)
            stage.down[gone] -= 1
            stage.down[back] = max(0, stage.down[back])
            stage.start(gone)
        for broker in (gone, back, added):
            await stage.until_serving(broker)
        await self._operator.alter_loose(_FORBID_UNCLEAN)
        await self._until_three_replicas(tp, rng.sample(stage.view.broker_ids, 3))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until ``is_so``, or for as long as a session lasts: other faults may prevent it."""
        for _ in range(round(_FENCED_S / POLL_S)):
            if is_so():
                return
            await asyncio.sleep(POLL_S)

    def _has_replicas(self, tp: TopicPartition, replicas: Collection[int]) -> bool:
        return any(
            known == tp and set(one.replicas) == set(replicas) and not one.is_reassigning
            for known, one, _ in self._stage.view.partitions()
        )

    def _in_sync(self, tp: TopicPartition) -> tuple[int, ...]:
        found = [one.isr for known, one, _ in self._stage.view.partitions() if known == tp]
        return tuple(found[0]) if found else ()

    # --- levels and settings ---------------------------------------------------------------------

    async def _downgrade(self, fault: Fault) -> None:
        """Lower the level to that before the registration of controllers, and raise it again.

        A cluster of mixed versions has that level. Raising is refused while the node with older
        software is registered; after some refusals that software is replaced.
        """
        low, high = OLDER_VERSION, DEFAULT_METADATA_VERSION
        older = self._older_host()
        if older is not None or self._is_outdated(high):
            await self._raise_to(high)
            await wait(fault)
            if older is not None and fault.rng().random() < _REPLACED_SOFTWARE:
                older.features, self._older_process = SUPPORTED_FEATURES, older.process
            return
        is_safe = fault.rng().random() < 0.5
        kind = UpgradeType.SAFE_DOWNGRADE if is_safe else UpgradeType.UNSAFE_DOWNGRADE

        async def lower(client: ClusterClient) -> None:
            await update_features(client, {METADATA_VERSION: low}, upgrade_type=kind)

        await self._operator.ask(f"lower {METADATA_VERSION} to {low.release}", lower)
        await wait(fault)
        while await self._raise_to(high):
            await asyncio.sleep(POLL_S)

    async def _downgrade_with_loss(self, fault: Fault) -> None:
        """Lower the level to one without cordons, and raise it again.

        A safe downgrade is refused if directories are cordoned.
        """
        state = self._stage.view.decided()
        if state is None:
            return
        present, elr = state.metadata_version, ELIGIBLE_LEADER_REPLICAS_VERSION
        await self._operator.set_cordon(fault, ConfigOperation.APPEND)
        low = {METADATA_VERSION: int(_LOSSY_VERSION), elr: 0}
        for kind in (UpgradeType.SAFE_DOWNGRADE, UpgradeType.UNSAFE_DOWNGRADE):
            if await self._change_levels(low, kind) is None:
                break
        await wait(fault)
        high = {METADATA_VERSION: int(present), elr: 1}
        while await self._change_levels(high, UpgradeType.UPGRADE) is not None:
            await asyncio.sleep(POLL_S)
        await self._operator.lift_cordon(fault)

    async def _change_levels(
        self, levels: Mapping[str, int], kind: UpgradeType
    ) -> ErrorCode | None:
        async def change(client: ClusterClient) -> None:
            await update_features(client, levels, upgrade_type=kind)

        wanted = " ".join(f"{name}={level}" for name, level in levels.items())
        return await self._operator.ask(f"{kind.name.lower()} to {wanted}", change)

    def replace_outdated_software(self) -> None:
        """Give the node with older software newer software at its next start.

        The level may have been raised while that node was not registered.
        """
        state, older = self._stage.view.decided(), self._older_host()
        if older is not None and state is not None and state.metadata_version > OLDER_VERSION:
            older.features = SUPPORTED_FEATURES

    def _is_outdated(self, level: MetadataVersion) -> bool:
        """Return whether a node that runs or is registered knows no ``level``.

        New software is in use from the next start of its node on. A controller is not registered
        while the level is lower than that of such registrations.
        """
        if any(host.process is self._older_process is not None for host in self._nodes()):
            return True
        state = self._stage.view.decided()
        if state is None:
            return False
        ranges = [each for broker in state.brokers.values() for each in broker.features]
        ranges += [each for node in state.controllers.values() for each in node.features]
        return any(each.name == METADATA_VERSION and each.highest < level.value for each in ranges)

    def _older_host(self) -> SimulatedNode | None:
        return next((host for host in self._nodes() if host.features is OLDER_FEATURES), None)

    def _nodes(self) -> tuple[SimulatedNode, ...]:
        cluster = self._stage.cluster
        return (*cluster.brokers.values(), *cluster.controllers)

    async def _raise_to(self, level: MetadataVersion) -> bool:
        """Return whether it was refused, or failed."""

        async def ask(client: ClusterClient) -> None:
            await update_features(
                client, {METADATA_VERSION: level}, upgrade_type=UpgradeType.UPGRADE
            )

        what = f"raise {METADATA_VERSION} to {level.release}"
        return await self._operator.ask(what, ask) is not None

    async def _misuse_coordinators(self, fault: Fault) -> None:
        rng = fault.rng()
        topic, count = rng.choice((OFFSETS_TOPIC, TRANSACTIONS_TOPIC)), rng.randint(2, 7)
        is_grown = rng.random() < _GROWN

        async def ask(client: ClusterClient) -> None:
            if is_grown:
                await create_partitions(client, topic, count)
            else:
                await delete_topic(client, topic)

        await self._operator.ask(f"{'grow' if is_grown else 'delete'} {topic}", ask)
        await wait(fault)

    async def _change_settings(self, fault: Fault) -> None:
        name, values = fault.rng().choice(_SETTINGS)
        change = ConfigChange(name, fault.rng().choice(values))

        async def alter(client: ClusterClient) -> None:
            await incremental_alter_configs(client, {_ALL_NODES: [change]})

        async def reset(client: ClusterClient) -> None:
            back = ConfigChange(name, None, ConfigOperation.DELETE)
            await incremental_alter_configs(client, {_ALL_NODES: [back]})

        await self._operator.ask(f"set {change.name}={change.value} everywhere", alter)
        await wait(fault)
        await self._until_done(f"reset {name}", reset)
