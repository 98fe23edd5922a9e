"""LOOP. ``CleanerOffsets``: the offset up to which each compacted replica of this node is clean.

The offsets are kept in memory by replica, so they survive a move to another directory. They are
written to ``cleaner-offset-checkpoint`` of the replica's directory, in Kafka's format.

A file may have a lower offset than memory, or none: then records are cleaned again, with the same
result.
"""

from __future__ import annotations

from collections import defaultdict

from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.checkpoints import format_offsets
from kraftjbod.storage.dir_names import CLEANER_CHECKPOINT
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.replicas.offset_checkpoints import read_offset_file
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry


class CleanerOffsets:
    """Offset below which each compacted replica of the node is clean, in memory and in the
    directories' ``cleaner-offset-checkpoint`` files. All methods run on the event loop.
    """

    def __init__(self, registry: ReplicaRegistry) -> None:
        self._registry = registry
        #: Directories whose file was read.
        self._loaded: set[LogDir] = set()
        self._clean_to: dict[TopicPartition, int] = {}
        #: Replicas that the file of each directory names, or may name.
        self._named: defaultdict[LogDir, set[TopicPartition]] = defaultdict(set)

    async def load(self, log_dir: LogDir) -> None:
        """Read the clean offsets of the replicas in ``log_dir`` from its file. No effect if an
        earlier call has read it.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is stalled, or its queue is full.
        """
        if log_dir in self._loaded:
            return
        found = await read_offset_file(log_dir, CLEANER_CHECKPOINT)
        if log_dir not in self._loaded:
            self._loaded.add(log_dir)
            self._named[log_dir].update(found)
            for handle in self._registry.handles_in(log_dir):
                if (offset := found.get(handle.topic_partition)) is not None:
                    self._clean_to.setdefault(handle.topic_partition, offset)

    def first_dirty(self, handle: LogHandle) -> int:
        """Return the first offset that no pass has cleaned, at least the log start.

        A clean offset above the log end belongs to an earlier log: then it is the log start.
        """
        offset = self._clean_to.get(handle.topic_partition, 0)
        is_of_this_log = offset <= handle.log_end_offset
        return max(handle.log_start_offset, offset if is_of_this_log else 0)

    async def advance(self, handle: LogHandle, offset: int) -> None:
        """Record that everything below ``offset`` is clean, and write the directory's file.

        On an error of :meth:`write`, only the offset in memory has changed.
        """
        self._clean_to[handle.topic_partition] = offset
        await self.write(handle.log_dir)

    async def lower(self, handle: LogHandle, offset: int) -> None:
        """Lower the clean offset to ``offset``, also in the file, before the log is truncated.

        No effect if it is not higher. On an error of :meth:`write`, only the offset in memory has
        changed.
        """
        tp = handle.topic_partition
        if self._clean_to.get(tp, 0) > offset:
            self._clean_to[tp] = offset
            await self.write(handle.log_dir)

    async def forget(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """Remove a replica from the file of ``log_dir``, before another one of that name is
        created. The offset in memory stays.

        Raises the errors of :meth:`load` and :meth:`write`.
        """
        await self.load(log_dir)
        if tp in self._named[log_dir]:
            await self.write(log_dir, without=tp)

    def drop(self, tp: TopicPartition) -> None:
        """Forget the clean offset of ``tp`` in memory, because the replica was removed. The file
        keeps its entry until it is written again.
        """
        self._clean_to.pop(tp, None)

    async def write(self, log_dir: LogDir, *, without: TopicPartition | None = None) -> None:
        """Write the clean offsets of the directory's replicas to its file, and wait until it is
        durable.

        :param without: a replica that the file must not name.
        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full.
        """
        here = [handle.topic_partition for handle in self._registry.handles_in(log_dir)]
        offsets = {tp: self._clean_to[tp] for tp in here if tp in self._clean_to and tp != without}
        self._named[log_dir] |= offsets.keys()
        path, data = f"{log_dir.path}/{CLEANER_CHECKPOINT}", format_offsets(offsets)
        await log_dir.replace_file(path, data)
        self._named[log_dir] = set(offsets)
