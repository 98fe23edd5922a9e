"""DISK. ``.snapshot`` files of a replica: producer state as of an offset.

They save walking the whole log when a replica is loaded; any of them can be missing or damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kraftjbod.protocol.control_records import TransactionMarker, read_marker
from kraftjbod.storage.dir_names import SNAPSHOT_SUFFIX, offset_file_name, parse_offset_file
from kraftjbod.storage.log.producer_state import (
    DEFAULT_PRODUCER_LIMITS,
    ProducerLimits,
    ProducerState,
)
from kraftjbod.storage.segments.batch_walk import Located
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from kraftjbod.storage.vfs import Vfs, write_atomically

_SNAPSHOTS_KEPT: Final = 2
_BATCHES_PER_BEAT: Final = 1000


def snapshot_offsets(vfs: Vfs, directory: str) -> list[int]:
    """Offsets of the producer snapshots in ``directory``, rising."""
    parsed = (parse_offset_file(entry.name) for entry in vfs.list_dir(directory))
    return sorted(found[0] for found in parsed if found and found[1] == SNAPSHOT_SUFFIX)


def write_snapshot(
    vfs: Vfs,
    directory: str,
    state: ProducerState,
    offset: int,
    *,
    sync: bool,
    recovery_base: int = 0,
) -> None:
    """Write ``state`` as of ``offset``, and forget all but the newest snapshots.

    The newest one up to ``recovery_base``, where a walk after a crash begins, stays as well: what
    was aborted after it can be known by it alone. If it fails, the older ones are still there.
    """
    write_atomically(vfs, _path(directory, offset), state.to_snapshot(), sync=sync)
    offsets = snapshot_offsets(vfs, directory)
    base = max((one for one in offsets if one <= recovery_base), default=None)
    for old in offsets[:-_SNAPSHOTS_KEPT]:
        if old != base:
            vfs.unlink_if_exists(_path(directory, old))


def drop_snapshots_outside(vfs: Vfs, directory: str, start_offset: int, end_offset: int) -> None:
    """Forget snapshots that speak of what the log no longer holds."""
    for offset in snapshot_offsets(vfs, directory):
        if not start_offset <= offset <= end_offset:
            vfs.unlink_if_exists(_path(directory, offset))


def load_producers(
    vfs: Vfs,
    directory: str,
    segments: Sequence[LogSegment],
    end_offset: int,
    limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    *,
    mend_from: int | None = None,
    beat: Callable[[], None] = lambda: None,
) -> ProducerState:
    """From the newest sound snapshot not after ``end_offset``, and the batches after it.

    ``beat`` says that it goes on, which may be for long if there is no snapshot. The transaction
    indexes of the segments from number ``mend_from`` on are made anew.
    """
    oldest, latest = segments[0].base_offset, end_offset
    if mend_from is not None:
        latest = min(end_offset, segments[mend_from].base_offset)
    found = _newest_snapshot(vfs, directory, oldest, latest)
    state, begin = found or (ProducerState(), oldest)
    for i, segment in enumerate(segments):
        following = segments[i + 1 : i + 2]
        segment_end = min([end_offset, *(one.base_offset for one in following)])
        aborted: list[AbortedTransaction] = []
        if begin < segment_end:
            aborted = _replay(state, segment, begin, segment_end, limits, beat)
        if mend_from is not None and mend_from <= i:
            segment.take_transactions(TransactionIndex(aborted))
        if segment_end >= end_offset:
            break
    if (
        found is None
        and latest < end_offset
        and _newest_snapshot(vfs, directory, oldest, end_offset)
    ):
        # The indexes are made from what is left; a later snapshot knows of what has left, too.
        return load_producers(vfs, directory, segments, end_offset, limits, beat=beat)
    return state


def _newest_snapshot(
    vfs: Vfs, directory: str, oldest: int, latest: int
) -> tuple[ProducerState, int] | None:
    """The newest sound one between these offsets, and its own."""
    for offset in reversed(snapshot_offsets(vfs, directory)):
        data = vfs.read_if_exists(_path(directory, offset)) if oldest <= offset <= latest else None
        found = None if data is None else ProducerState.from_snapshot(bytes(data))
        if found is not None:
            return found, offset
    return None


def transactions_of(
    vfs: Vfs,
    directory: str,
    segments: Sequence[LogSegment],
    at: int,
    end_offset: int,
    limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    beat: Callable[[], None] = lambda: None,
) -> TransactionIndex:
    """The index of the segment number ``at``, which ends at ``end_offset``, from the log."""
    segment = segments[at]
    base = segment.base_offset
    before = load_producers(vfs, directory, segments, base, limits, beat=beat)
    return TransactionIndex(_replay(before, segment, base, end_offset, limits, beat))


def _replay(
    state: ProducerState,
    segment: LogSegment,
    begin: int,
    end: int,
    limits: ProducerLimits,
    beat: Callable[[], None],
) -> list[AbortedTransaction]:
    """What the segment's batches from ``begin`` up to ``end`` make of ``state``; what aborted."""
    aborted = []
    for number, located in enumerate(segment.batches_from(begin)):
        header = located.header
        if header.base_offset >= end:
            break
        if not number % _BATCHES_PER_BEAT:
            beat()
        if header.has_producer_id:
            marker = _marker_at(segment, located) if header.is_control else None
            ended = state.record(header, header.base_offset, limits=limits, marker=marker)
            if ended is not None:
                aborted.append(ended)
    return aborted


def _marker_at(segment: LogSegment, located: Located) -> TransactionMarker | None:
    data = segment.read_at(located.position, located.header.size_bytes)
    return read_marker(data, 0, located.header)


def _path(directory: str, offset: int) -> str:
    return f"{directory}/{offset_file_name(offset, SNAPSHOT_SUFFIX)}"
