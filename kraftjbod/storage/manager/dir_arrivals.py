"""LOOP. ``DirArrivals``: dirs that come to, come back to, or leave a log manager that runs.

* A dir is loaded and recovered on its own, while all others go on; only then is it one of the
  node's.
* What it holds joins the registry in one step, with no ``await``. A replica that is here already or
  is being made, stays what is served: the copy that came goes, and is kept as ``-stray`` if it is
  another's or holds more.
* Moves that were under way are sorted out as at a start.

Whether a dir may come is for whoever opened it to say; what metadata thinks of the copies, for the
caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from kraftjbod.core.errors import KafkaStorageError, OperatingError
from kraftjbod.core.ids import TopicId, TopicPartition, Uuid
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.dir_names import ReplicaDirKind
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.dir_loading import DirLoading, LoadedDir, LoadProgress, Stray
from kraftjbod.storage.replicas.offset_checkpoints import OffsetCheckpoints
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.replicas.replica_swap import ReplicaSwap
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.replicas.swap_recovery import SwapRecovery


class Arrival(NamedTuple):
    """What came with a dir, and what of it nobody needs."""

    loaded: LoadedDir
    superseded: list[LogHandle]
    superseded_futures: list[FutureReplica]


class DirArrivals:
    """``begin`` and ``end`` start and stop the chores of a dir. For the loop's thread."""

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        checkpoints: OffsetCheckpoints,
        loading: DirLoading,
        swap: ReplicaSwap,
        recovery: SwapRecovery,
        equip: Callable[[LogDir], None],
        begin: Callable[[LogDir], None],
        end: Callable[[LogDir], None],
        move_aside: Callable[
            [LogHandle, ReplicaDirKind, StrayReason, Uuid | None], Awaitable[None]
        ],
        found_strays: Callable[[Iterable[Stray]], None],
    ) -> None:
        self._registry = registry
        self._checkpoints = checkpoints
        self._loading = loading
        self._swap = swap
        self._recovery = recovery
        self._equip = equip
        self._begin = begin
        self._end = end
        self._move_aside = move_aside
        self._found_strays = found_strays
        self._log = get_logger()

    async def load(self, log_dir: LogDir, report: Callable[[LoadProgress], None]) -> LoadedDir:
        """Everything in ``log_dir``, recovered as after a crash where it was not closed.

        :raises KafkaStorageError: it goes offline meanwhile; nothing has changed.
        :raises LogDirImpairedError: it does not answer; nothing has changed.
        """
        self._equip(log_dir)
        return await self._loading.load(log_dir, report)

    def install(
        self,
        loaded: LoadedDir,
        *,
        replaces: LogDir | None,
        is_taken: Callable[[TopicPartition], bool],
    ) -> Arrival:
        """Have the dir among the node's; :meth:`settle` has to follow.

        ``is_taken`` says whether a replica is served, or being made, from elsewhere.
        """
        log_dir = loaded.log_dir
        superseded = []
        for handle in loaded.handles:
            if is_taken(handle.topic_partition):
                superseded.append(handle)
                self._registry.begin_leaving(handle)
            else:
                self._registry.take_in(handle)
        old = [
            future
            for future in loaded.futures
            # Of two moves the one that was ordered last counts.
            if future.topic_partition in self._registry.futures
            and self._registry.has_current(future.topic_partition)
        ]
        futures = [future for future in loaded.futures if future not in old]
        kept = [handle for handle in loaded.handles if handle not in superseded]
        moved = [handle for handle in loaded.moved_here if handle not in superseded]
        self._checkpoints.found(log_dir, loaded.offsets)
        self._found_strays(loaded.strays)
        self._registry.put_dir(log_dir, replaces)
        if replaces is not None:
            self._end(replaces)
        self._begin(log_dir)
        remaining = loaded._replace(handles=kept, moved_here=moved, futures=futures)
        return Arrival(remaining, superseded, old)

    async def settle(
        self, arrival: Arrival, disowned_by: Callable[[TopicId], Uuid | None] = lambda _: None
    ) -> None:
        """Sort out copies and moves; a dir that dies over this is OFFLINE, and the rest goes on.

        :param disowned_by: the metadata log that does not know the topic of that id, if it does
            not: what is set aside says so, and goes after a while.
        """
        try:
            await self._recovery.settle([arrival.loaded])
            for future in arrival.superseded_futures:
                await self._swap.remove_unneeded(future)
            for handle in arrival.superseded:
                await self._supersede(handle, disowned_by(handle.topic_id))
                self._registry.left(handle)
        finally:
            for handle in arrival.superseded:
                self._registry.left(handle)

    async def _supersede(self, handle: LogHandle, disowned_by: Uuid | None) -> None:
        tp, where = handle.topic_partition, handle.log_dir.path
        served = self._registry.handles.get(tp)
        is_older = (
            served is not None
            and served.topic_id == handle.topic_id
            and served.log_end_offset >= handle.log_end_offset
        )
        kind = ReplicaDirKind.DELETE if is_older else ReplicaDirKind.STRAY
        is_unknown = disowned_by is not None
        reason = StrayReason.TOPIC_UNKNOWN if is_unknown else StrayReason.SUPERSEDED
        self._log.warning(
            "replica_copy_superseded", partition=str(tp), log_dir=where, kept=not is_older
        )
        try:
            await self._move_aside(handle, kind, reason, disowned_by)
        except OperatingError as e:
            self._log.warning("superseded_copy_not_removed", log_dir=where, reason=e.message)

    def take_out(self, log_dir: LogDir) -> None:
        """The dir is none of this node's any more; it must hold no replica.

        :raises KafkaStorageError: it holds some, or one is on its way into it.
        """
        if self._registry.every_handle_in(log_dir) or self._registry.futures_in(log_dir):
            raise KafkaStorageError(f"{log_dir.path} holds replicas", path=log_dir.path)
        self._registry.remove_dir(log_dir)
        self._end(log_dir)

    def put_back(self, log_dir: LogDir) -> None:
        """Undo :meth:`take_out`."""
        self._registry.put_dir(log_dir)
        self._begin(log_dir)
