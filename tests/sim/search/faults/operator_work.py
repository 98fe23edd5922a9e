"""``OperatorWork``: requests of an operator during faults.

Moves, drains, cordons, configuration, and the return of directories. A request may fail, and is
repeated if its result is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kraftjbod.cli.clients.cluster_admin import ElectionType, elect_leaders
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir
from kraftjbod.cli.clients.replica_admin import alter_replica_log_dirs
from kraftjbod.core.config import UNCLEAN_LEADER_ELECTION
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.stage import POLL_S, Plays, Stage, wait

#: Share of the lost last replicas for which an unclean election is requested; for the others the
#: topics allow unclean elections, and the directory is forgotten with ``--force``.
_ELECTED_UNCLEAN: Final = 0.5
#: Time limit of one request to a broker that may have a fault.
_TRY_MS: Final = 4_000


class OperatorWork:
    """:param make_client: returns a client with the given name, which the caller closes."""

    def __init__(self, stage: Stage, *, make_client: Callable[[str], ClusterClient]) -> None:
        self._stage = stage
        self._make_client = make_client

    def plays(self) -> Plays:
        return {
            Kind.MOVES: self._move,
            Kind.CORDON: self._cordon,
            Kind.DRAIN: self._drain,
            Kind.REATTACH: self._reattach,
            Kind.CONFIG: self._configure,
        }

    # --- asking ----------------------------------------------------------------------------------

    async def ask(
        self, what: str, question: Callable[[ClusterClient], Awaitable[None]]
    ) -> ErrorCode | None:
        """Send a request once; return its error code, UNKNOWN_SERVER_ERROR if it has none."""
        client = self._make_client("operator")
        try:
            async with asyncio.timeout(_TRY_MS * 2 / 1000):
                await client.refresh_metadata()
                await question(client)
        except (KraftJbodError, TimeoutError) as e:
            self._stage.note(f"{what}: {type(e).__name__} {e}")
            code = e.code if isinstance(e, OperatingError) else None
            return code or ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            self._stage.note(f"{what}: done")
            return None
        finally:
            await client.close()

    async def move_to(self, broker: int, target: str, which: list[TopicPartition]) -> None:
        async def move(client: ClusterClient) -> None:
            refusals = await alter_replica_log_dirs(client, broker, {target: which})
            for tp, error in refusals.items():
                self._stage.note(f"the move of {tp} to {target} is refused: {error}")

        await self.ask(f"move {' '.join(map(str, which))} to {target}", move)

    async def order(self, fault: Fault, operation: str, *, but: ErrorCode) -> None:
        """Repeat ``operation`` until it succeeds, or ``but`` says that it did before."""
        while True:
            self._stage.start(fault.broker)
            code = await self.order_once(fault, operation)
            if code is None or code is but:
                return
            await asyncio.sleep(POLL_S)

    async def forget(self, fault: Fault, *, unless: Callable[[], bool]) -> None:
        """Forget the directory of a lost disk, as docs/situations/replace-a-disk.md says.

        The broker refuses with INVALID_REQUEST if the last in-sync replica of a partition was
        there. The operator then gives up records, of topics without acks=all only.

        :param unless: whether the directory is in service under another id by now.
        """
        is_forced = False
        while not unless():
            self._stage.start(fault.broker)
            code = await self.order_once(fault, "forget", force=is_forced)
            if code in (None, ErrorCode.LOG_DIR_NOT_FOUND):
                break
            if code is ErrorCode.INVALID_REQUEST and not is_forced:
                if fault.rng().random() < _ELECTED_UNCLEAN:
                    await self._elect_unclean()
                else:
                    await self.alter_loose(ConfigChange(UNCLEAN_LEADER_ELECTION, "true"))
                    is_forced = True
            await asyncio.sleep(POLL_S)
        if is_forced:
            back = ConfigChange(UNCLEAN_LEADER_ELECTION, None, ConfigOperation.DELETE)
            await self.alter_loose(back)

    async def _elect_unclean(self) -> None:
        partitions = self._stage.loose_partitions

        async def elect(client: ClusterClient) -> None:
            await elect_leaders(client, ElectionType.UNCLEAN, partitions)

        await self.ask(f"elect unclean leaders of {' '.join(map(str, partitions))}", elect)

    async def alter_loose(self, change: ConfigChange) -> None:
        """Repeat until the configuration of each topic without acks=all has the change."""
        for topic in sorted(self._stage.loose):
            resource = ConfigResource(ResourceType.TOPIC, topic)
            while await self._alter(resource, change) is not None:
                await asyncio.sleep(POLL_S)

    async def order_once(
        self, fault: Fault, operation: str, *, force: bool = False
    ) -> ErrorCode | None:
        change = LogDirChange(
            operation=operation, broker=fault.broker, target=self._stage.path(fault), force=force
        )

        async def order(client: ClusterClient) -> None:
            await change_log_dir(client, change, timeout_ms=_TRY_MS)

        return await self.ask(f"{operation} {self._stage.path(fault)}", order)

    async def until_back(self, fault: Fault) -> None:
        broker, path = fault.broker, self._stage.path(fault)
        while True:
            self._stage.start(broker)
            state = self._stage.view.dir_state(broker, path)
            if state is LogDirState.ONLINE and self._stage.view.is_serving(broker):
                return
            if state is LogDirState.OFFLINE and self._stage.view.is_serving(broker):
                await self.order_once(fault, "reattach")
            elif state is None and self._stage.view.is_serving(broker):
                await self.order_once(fault, "add")
            await asyncio.sleep(POLL_S)

    # --- work ------------------------------------------------------------------------------------

    async def _move(self, fault: Fault) -> None:
        """Move some replicas to other directories, and soon move some of these on or back."""
        rng = fault.rng()
        for _ in range(rng.randint(1, 3)):
            target = rng.choice(self._stage.host(fault).log_dirs)
            await self.move_to(fault.broker, target, self._stage.some_partitions(rng))
            await asyncio.sleep(fault.for_ms / 2000)

    async def _cordon(self, fault: Fault) -> None:
        await self.set_cordon(fault, ConfigOperation.APPEND)
        await wait(fault)
        await self.lift_cordon(fault)

    async def _drain(self, fault: Fault) -> None:
        rng, path = fault.rng(), self._stage.path(fault)
        await self.set_cordon(fault, ConfigOperation.APPEND)
        others = [one for one in self._stage.host(fault).log_dirs if one != path]
        for tp in self._stage.replicas_in(fault.broker, path):
            await self.move_to(fault.broker, rng.choice(others), [tp])
        await wait(fault)
        await self.lift_cordon(fault)

    async def lift_cordon(self, fault: Fault) -> None:
        while await self.set_cordon(fault, ConfigOperation.SUBTRACT) is not None:
            await asyncio.sleep(POLL_S)

    async def set_cordon(self, fault: Fault, operation: ConfigOperation) -> ErrorCode | None:
        resource = ConfigResource(ResourceType.BROKER, str(fault.broker))
        change = ConfigChange("cordoned.log.dirs", self._stage.path(fault), operation)
        return await self._alter(resource, change)

    async def _reattach(self, fault: Fault) -> None:
        await self.order_once(fault, "reattach")

    async def _configure(self, fault: Fault) -> None:
        rng = fault.rng()
        topic = rng.choice(sorted(self._stage.topics))
        name, value = rng.choice(
            (
                ("segment.bytes", "2048"),
                ("segment.bytes", "16384"),
                ("min.insync.replicas", "3"),
                ("min.insync.replicas", "2"),
                ("flush.messages", "1"),
            )
        )
        resource = ConfigResource(ResourceType.TOPIC, topic)
        await self._alter(resource, ConfigChange(name, value))
        await wait(fault)
        back = ConfigChange(name, None, ConfigOperation.DELETE)
        # The configuration of a deleted topic is gone.
        while await self._alter(resource, back) not in (None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            await asyncio.sleep(POLL_S)

    async def _alter(self, resource: ConfigResource, change: ConfigChange) -> ErrorCode | None:
        async def alter(client: ClusterClient) -> None:
            await incremental_alter_configs(client, {resource: [change]})

        what = f"{resource}: {change.operation.name.lower()} {change.name}={change.value}"
        return await self.ask(what, alter)
