"""LOOP. ``ReplicaRegistry``: the current and future replicas of this node and their directories.

The log manager and the components for moves share this state, on the event loop. A partition is in
``handles``, or in ``held_aside``, or has no current copy that may be served.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.core.ids import DirectoryId, TopicPartition, Uuid
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.dir_names import ReplicaDirKind, doomed_dir_name
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.moves.future_replica import FutureReplica


class ReplicaRegistry:
    """Current and future replicas of the node by partition, its log directories, and the
    configurations of topics. Only state in memory. All methods run on the event loop.
    """

    def __init__(
        self,
        *,
        dirs: Sequence[LogDir],
        default_config: TopicConfig,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        #: Replaced whenever a directory is added or removed.
        self.dirs = tuple(dirs)
        self._default_config = default_config
        self._random_bytes = random_bytes
        self._configs: dict[str, TopicConfig] = {}
        self.handles: dict[TopicPartition, LogHandle] = {}
        #: The same handles by directory, so that work for one directory skips all others.
        self._handles_by_dir: defaultdict[LogDir, dict[LogHandle, None]] = defaultdict(dict)
        #: Partitions with several current copies, until they are resolved.
        self.held_aside: dict[TopicPartition, list[LogHandle]] = {}
        self.futures: dict[TopicPartition, FutureReplica] = {}
        #: Copies that are not served and keep the name of their directory until they are renamed.
        self._leaving: dict[tuple[LogDir, TopicPartition], asyncio.Event] = {}

    # -- replicas ---------------------------------------------------------------------------

    def take_in(self, handle: LogHandle) -> None:
        """Add a current copy that was found on a disk. If the partition has another one, no copy is
        served: all are kept in ``held_aside``.
        """
        tp = handle.topic_partition
        if tp in self.held_aside:
            self.held_aside[tp].append(handle)
        elif tp in self.handles:
            served = self.remove(tp)
            assert served is not None
            self.held_aside[tp] = [served, handle]
        else:
            self._add(handle)
        handle.set_config(self.config_of(tp.topic))

    def put(self, handle: LogHandle) -> None:
        """Make ``handle`` the current copy of its replica, and set its configuration.

        The configuration may have changed since the log was opened.
        """
        self.remove(handle.topic_partition)
        self._add(handle)
        handle.set_config(self.config_of(handle.topic_partition.topic))

    def remove(self, topic_partition: TopicPartition) -> LogHandle | None:
        """Forget the current copy in ``handles``, and return it; None if there is none. Copies in
        ``held_aside`` stay.
        """
        handle = self.handles.pop(topic_partition, None)
        if handle is not None:
            del self._handles_by_dir[handle.log_dir][handle]
        return handle

    def _add(self, handle: LogHandle) -> None:
        self.handles[handle.topic_partition] = handle
        self._handles_by_dir[handle.log_dir][handle] = None

    def handles_in(self, log_dir: LogDir) -> list[LogHandle]:
        return list(self._handles_by_dir.get(log_dir, ()))

    def futures_in(self, log_dir: LogDir) -> list[FutureReplica]:
        return [future for future in self.futures.values() if future.log_dir is log_dir]

    def every_handle_in(self, log_dir: LogDir) -> list[LogHandle]:
        """Return the current copies in a directory, including those that are held aside."""
        aside = (copy for copies in self.held_aside.values() for copy in copies)
        return [*self.handles_in(log_dir), *(copy for copy in aside if copy.log_dir is log_dir)]

    def has_current(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self.handles or topic_partition in self.held_aside

    def forget_all_in(self, log_dir: LogDir) -> list[LogHandle]:
        """Forget all copies in this directory: current and future ones, and copies held aside.

        Return the handles that were served, without the copies held aside.
        """
        gone = list(self._handles_by_dir.pop(log_dir, ()))
        for handle in gone:
            del self.handles[handle.topic_partition]
        for future in self.futures_in(log_dir):
            del self.futures[future.topic_partition]
        for tp, copies in list(self.held_aside.items()):
            # The remaining copies stay aside, because the metadata may assign the lost one.
            self.held_aside[tp] = [copy for copy in copies if copy.log_dir is not log_dir]
            if not self.held_aside[tp]:
                del self.held_aside[tp]
        return gone

    def begin_leaving(self, handle: LogHandle) -> None:
        """Reserve the directory name of the copy until :meth:`left`, so that no new replica takes
        it.
        """
        self._leaving[handle.log_dir, handle.topic_partition] = asyncio.Event()

    def left(self, handle: LogHandle) -> None:
        leaving = self._leaving.pop((handle.log_dir, handle.topic_partition), None)
        if leaving is not None:
            leaving.set()

    async def name_free(self, log_dir: LogDir, topic_partition: TopicPartition) -> None:
        """Wait until no copy that is being removed occupies the partition's directory name in
        ``log_dir``. The wait lasts as long as that disk hangs.
        """
        while (leaving := self._leaving.get((log_dir, topic_partition))) is not None:
            await leaving.wait()

    # -- dirs -------------------------------------------------------------------------------

    def put_dir(self, log_dir: LogDir, replaces: LogDir | None = None) -> None:
        """Add a directory.

        :param replaces: the former object of the same directory, which is removed; None for a new
            one.
        """
        if replaces is None:
            self.dirs = (*self.dirs, log_dir)
        else:
            assert replaces in self.dirs, replaces
            self.dirs = tuple(log_dir if d is replaces else d for d in self.dirs)

    def remove_dir(self, log_dir: LogDir) -> None:
        """Remove a directory, which must have no replicas."""
        assert not self.every_handle_in(log_dir), log_dir
        assert not self.futures_in(log_dir), log_dir
        self.dirs = tuple(d for d in self.dirs if d is not log_dir)
        self._handles_by_dir.pop(log_dir, None)

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.is_online]

    def dir_by_id(self, directory_id: DirectoryId) -> LogDir | None:
        return next((d for d in self.dirs if d.directory_id == directory_id), None)

    def require_online(self, directory_id: DirectoryId) -> LogDir:
        """Return the directory with this id.

        :raises KafkaStorageError: it does not belong to this node, or is offline.
        """
        log_dir = self.dir_by_id(directory_id)
        if log_dir is None:
            raise KafkaStorageError(
                f"directory {directory_id} is none of this node's", directory_id=directory_id
            )
        if not log_dir.is_online:
            raise log_dir.offline_error()
        return log_dir

    def doomed_path(
        self,
        log_dir: LogDir,
        topic_partition: TopicPartition,
        kind: ReplicaDirKind,
        unique: Uuid | None = None,
    ) -> str:
        """Return the path of a copy after its removal (``-delete``) or as a stray (``-stray``).

        :param unique: id in the name; None for a random one.
        """
        if unique is None:
            unique = Uuid.random(self._random_bytes)
        return f"{log_dir.path}/{doomed_dir_name(topic_partition, kind, unique)}"

    # -- configuration ----------------------------------------------------------------------

    def set_default_config(self, config: TopicConfig) -> None:
        """Set the result of :meth:`config_of` for topics without a configuration of their own.

        Existing logs keep their configuration.
        """
        self._default_config = config

    def config_of(self, topic: str) -> TopicConfig:
        return self._configs.get(topic, self._default_config)

    def set_config(
        self, topic: str, config: TopicConfig, partitions: Iterable[int]
    ) -> list[LogHandle]:
        """Apply ``config`` to the current replicas of ``topic``, and to those created later. Return
        the handles of the current ones, including copies held aside.

        :param partitions: the partitions of the topic.
        """
        self._configs[topic] = config
        followed: list[LogHandle] = []
        for partition in partitions:
            tp = TopicPartition(topic, partition)
            if (handle := self.handles.get(tp)) is not None:
                followed.append(handle)
            followed += self.held_aside.get(tp, ())
        for handle in followed:
            handle.set_config(config)
        return followed
