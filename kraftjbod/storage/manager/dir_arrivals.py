"""LOOP. ``DirArrivals``: adds log directories to a running log manager, and removes them.

* A directory is loaded and recovered while the others are in use. It joins the node's directories
  when that is complete.
* Its replicas join the registry in one step, without an ``await``.
* If a replica is already served or being created elsewhere, the copy in the new directory is
  superseded. It is kept as ``-stray`` if it belongs to another topic or has more records, and
  deleted otherwise.
* Unfinished moves are handled as at a start.

The caller decides whether a directory may be added, and what the metadata says about its replicas.
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
    """A directory that was loaded while the node runs.

    ``loaded`` has the replicas that it contributes. ``superseded`` and ``superseded_futures`` are
    copies in it that are not used, because the node has the replica elsewhere.
    """

    loaded: LoadedDir
    superseded: list[LogHandle]
    superseded_futures: list[FutureReplica]


class DirArrivals:
    """Adds and removes directories. All methods run on the event loop.

    :param equip: creates the background tasks of a directory.
    :param begin: starts these tasks.
    :param end: stops them.
    """

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
        """Load and recover all replicas in ``log_dir``, with a scan if it was not closed cleanly.

        Nothing is served yet: :meth:`install` adds the result.

        :raises KafkaStorageError: the directory goes offline.
        :raises OverloadedError: the directory is stalled, or descriptors or memory were lacking for
            more than 30 s.
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
        """Add a loaded directory to the node's directories, and serve its replicas. Return what
        remains to do.

        :meth:`settle` has to follow.

        :param replaces: the offline object of the same directory; None for a new directory.
        :param is_taken: returns whether a replica is served, or being created, elsewhere.
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
            # Of two moves of one replica, the one that was requested last wins.
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
        """Remove superseded copies and resume moves. Refused removals are logged or retried later.
        If the directory fails meanwhile, it goes OFFLINE.

        :param disowned_by: returns the id of the metadata log that does not contain a topic id, or
            None. The mark of a stray copy names this log, so that the copy is deleted after a
            while.
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
        """Remove the directory from the node's directories.

        :raises KafkaStorageError: it holds replicas, or is the target of a move.
        """
        if self._registry.every_handle_in(log_dir) or self._registry.futures_in(log_dir):
            raise KafkaStorageError(f"{log_dir.path} holds replicas", path=log_dir.path)
        self._registry.remove_dir(log_dir)
        self._end(log_dir)

    def put_back(self, log_dir: LogDir) -> None:
        """Undo :meth:`take_out`: add the directory again and start its background tasks."""
        self._registry.put_dir(log_dir)
        self._begin(log_dir)
