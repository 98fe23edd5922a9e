"""DISK. ``ProducerSnapshots``: a replica's ``.snapshot`` files, with producer state at an offset.

* Snapshots limit how much of the log is replayed when a replica is loaded or truncated. Any of
  them may be missing or damaged, because older snapshots or the log itself suffice.
* One is kept for the start of each segment, as in Kafka, and the newest :data:`_SNAPSHOTS_KEPT`.
  Inside a segment the log writes one per ``producer.snapshot.interval.bytes``.
* The directory is listed once, and the names are kept in memory afterwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kraftjbod.protocol.control_records import TransactionMarker, read_marker
from kraftjbod.storage.dir_names import SNAPSHOT_SUFFIX, offset_file_name, parse_offset_file
from kraftjbod.storage.log.producer_state import (
    DEFAULT_PRODUCER_LIMITS,
    ProducerLimits,
    ProducerState,
)
from kraftjbod.storage.segments.batch_walk import Located
from kraftjbod.storage.segments.index_rebuild import ensure_indexes
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_batches import batches_from
from kraftjbod.storage.segments.steps import SEEK_BYTES, Steps
from kraftjbod.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from kraftjbod.storage.vfs import Vfs, write_atomically

_SNAPSHOTS_KEPT: Final = 2
#: A batch or damage that a walk passes counts as much, see steps.py.
_PASSED_BYTES: Final = 1024


class LoadedProducers(NamedTuple):
    """Producer state that was loaded for an offset. ``replayed_bytes`` is the size of the batches
    that were read to get it.

    ``is_from_snapshot``: the replay started with a snapshot, not with an empty state.
    """

    state: ProducerState
    replayed_bytes: int
    is_from_snapshot: bool


class _Replayed(NamedTuple):
    aborted: list[AbortedTransaction]
    size_bytes: int


class ProducerSnapshots:
    """Reads, writes and removes the ``.snapshot`` files of one replica, which have its producer
    state at some offsets. Runs in the directory's thread.
    """

    def __init__(
        self, vfs: Vfs, directory: Callable[[], str], offsets: Iterable[int] | None = None
    ) -> None:
        """Create the object without reading any file.

        :param directory: returns the present path of the replica.
        :param offsets: offsets of the snapshot files; None: list the directory when needed.
        """
        self._vfs = vfs
        self._directory = directory
        self._offsets = None if offsets is None else sorted(offsets)

    @property
    def offsets(self) -> Sequence[int]:
        """Offsets of all snapshot files, in ascending order."""
        return self._listed()

    def _listed(self) -> list[int]:
        if self._offsets is None:
            names = (entry.name for entry in self._vfs.list_dir(self._directory()))
            parsed = (parse_offset_file(name) for name in names)
            self._offsets = sorted(
                found[0] for found in parsed if found and found[1] == SNAPSHOT_SUFFIX
            )
        return self._offsets

    # -- writing ----------------------------------------------------------------------------

    def write(
        self,
        state: ProducerState,
        offset: int,
        segments: Sequence[LogSegment],
        *,
        sync: bool,
        recovery_base: int = 0,
    ) -> None:
        """Write ``state`` as of ``offset``, and remove older snapshots that are not needed.

        If writing fails, the older snapshots still exist.

        :param segments: the segments of the log. The snapshot at the base of each is kept.
        :param sync: whether the snapshot is durable when this returns.
        :param recovery_base: start of a recovery after a crash. The newest snapshot at or before it
            is kept, because only that one shows which later transactions were aborted.
        """
        offsets = self._listed()
        write_atomically(self._vfs, self.path(offset), state.to_snapshot(), sync=sync)
        if offset not in offsets[-1:]:
            self._offsets = offsets = sorted({*offsets, offset})
        needed = {segment.base_offset for segment in segments}
        needed.update(offsets[-_SNAPSHOTS_KEPT:])
        needed.update(offsets[: bisect_right(offsets, recovery_base)][-1:])
        self._remove([one for one in offsets if one not in needed])

    def put(self, snapshots: Mapping[int, bytes]) -> None:
        """Write snapshot files from another copy of this replica, without a sync.

        :param snapshots: their contents by offset, as :meth:`newest` returns them.
        """
        for offset, data in snapshots.items():
            write_atomically(self._vfs, self.path(offset), data, sync=False)
        self._offsets = None

    def newest(self) -> dict[int, bytes]:
        """Return the contents of the newest snapshot files by offset, for :meth:`put`."""
        found = {at: self._vfs.read_if_exists(self.path(at)) for at in self._newest_offsets()}
        return {offset: data for offset, data in found.items() if data is not None}

    def _newest_offsets(self) -> list[int]:
        return self._listed()[-_SNAPSHOTS_KEPT:]

    def drop_outside(self, start_offset: int, end_offset: int) -> None:
        """Remove snapshots at offsets below ``start_offset`` or above ``end_offset``."""
        outside = [one for one in self._listed() if not start_offset <= one <= end_offset]
        self._remove(outside)

    def _remove(self, doomed: Sequence[int]) -> None:
        offsets = self._listed()
        for offset in doomed:
            self._vfs.unlink_if_exists(self.path(offset))
            offsets.remove(offset)

    # -- loading ----------------------------------------------------------------------------

    def load(
        self,
        segments: Sequence[LogSegment],
        end_offset: int,
        limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    ) -> Steps[LoadedProducers]:
        """Return the producer state after all batches below ``end_offset``, in steps.

        The state comes from the newest sound snapshot at or before ``end_offset``, and a replay of
        the batches after it. Without a snapshot the headers of the whole log are read.
        """
        oldest = segments[0].base_offset
        found = self._newest_sound(oldest, end_offset)
        state, begin = found or (ProducerState(), oldest)
        replayed_bytes = 0
        for i in range(max(0, bisect_right(segments, begin, key=_base) - 1), len(segments)):
            segment_end = min([end_offset, *map(_base, segments[i + 1 : i + 2])])
            if begin < segment_end:
                replayed = yield from _replay(state, segments[i], begin, segment_end, limits)
                replayed_bytes += replayed.size_bytes
            if segment_end >= end_offset:
                break
        return LoadedProducers(state, replayed_bytes, is_from_snapshot=found is not None)

    def sound_at(self, offset: int) -> ProducerState | None:
        """Return the state of the snapshot at ``offset``; None if it is missing or damaged."""
        data = self._vfs.read_if_exists(self.path(offset))
        return None if data is None else ProducerState.from_snapshot(bytes(data))

    def _newest_sound(self, oldest: int, latest: int) -> tuple[ProducerState, int] | None:
        """Return the newest sound snapshot from ``oldest`` to ``latest``, and its offset; None
        without one.
        """
        for offset in reversed(self._listed()):
            if offset < oldest:
                return None
            found = self.sound_at(offset) if offset <= latest else None
            if found is not None:
                return found, offset
        return None

    def transactions_of(
        self,
        segments: Sequence[LogSegment],
        at: int,
        end_offset: int,
        limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    ) -> Steps[TransactionIndex]:
        """Return the transaction index of segment number ``at``, rebuilt in steps from its batches.

        :param end_offset: end of the segment.
        """
        segment = segments[at]
        base = segment.base_offset
        before = yield from self.load(segments, base, limits)
        replayed = yield from _replay(before.state, segment, base, end_offset, limits)
        return TransactionIndex(replayed.aborted)

    def path(self, offset: int) -> str:
        """Return the path of the snapshot at ``offset``."""
        return f"{self._directory()}/{offset_file_name(offset, SNAPSHOT_SUFFIX)}"


def _replay(
    state: ProducerState,
    segment: LogSegment,
    begin: int,
    end: int,
    limits: ProducerLimits,
) -> Steps[_Replayed]:
    """Apply the segment's batches from ``begin`` to before ``end`` to ``state``.

    Returns the aborted transactions and the size of the batches.
    """
    yield from ensure_indexes(segment)
    aborted, size_bytes = [], 0
    for located in batches_from(segment, begin):
        if located is None:
            yield _PASSED_BYTES
            continue
        header = located.header
        if header.base_offset >= end:
            break
        size_bytes += header.size_bytes
        yield min(header.size_bytes, SEEK_BYTES)
        if header.has_producer_id:
            marker = _marker_at(segment, located) if header.is_control else None
            ended = state.record(header, header.base_offset, limits=limits, marker=marker)
            if ended is not None:
                aborted.append(ended)
    return _Replayed(aborted, size_bytes)


def _base(segment: LogSegment) -> int:
    return segment.base_offset


def _marker_at(segment: LogSegment, located: Located) -> TransactionMarker | None:
    data = segment.read_at(located.position, located.header.size_bytes)
    return read_marker(data, 0, located.header)
