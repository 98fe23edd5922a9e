"""DISK. ``.snapshot`` files of a replica: producer state as of an offset.

They save walking the whole log when a replica is loaded; any of them can be missing or damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kraftjbod.storage.dir_names import SNAPSHOT_SUFFIX, offset_file_name, parse_offset_file
from kraftjbod.storage.log.producer_state import (
    DEFAULT_PRODUCER_LIMITS,
    ProducerLimits,
    ProducerState,
)
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.vfs import Vfs, write_atomically

_SNAPSHOTS_KEPT: Final = 2


def snapshot_offsets(vfs: Vfs, directory: str) -> list[int]:
    """Offsets of the producer snapshots in ``directory``, rising."""
    parsed = (parse_offset_file(entry.name) for entry in vfs.list_dir(directory))
    return sorted(found[0] for found in parsed if found and found[1] == SNAPSHOT_SUFFIX)


def write_snapshot(
    vfs: Vfs, directory: str, state: ProducerState, offset: int, *, sync: bool
) -> None:
    """Write ``state`` as of ``offset``, and forget all but the newest snapshots.

    If it fails, the older ones are still there.
    """
    write_atomically(vfs, _path(directory, offset), state.to_snapshot(), sync=sync)
    for old in snapshot_offsets(vfs, directory)[:-_SNAPSHOTS_KEPT]:
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
) -> ProducerState:
    """From the newest sound snapshot not after ``end_offset``, and the batches after it."""
    state, begin = ProducerState(), segments[0].base_offset
    for offset in reversed(snapshot_offsets(vfs, directory)):
        if offset > end_offset or offset < begin:
            continue
        data = vfs.read_if_exists(_path(directory, offset))
        found = None if data is None else ProducerState.from_snapshot(bytes(data))
        if found is not None:
            state, begin = found, offset
            break
    for i, segment in enumerate(segments):
        is_last = i == len(segments) - 1
        if begin < (end_offset if is_last else segments[i + 1].base_offset):
            for header in segment.headers_from(begin):
                if header.has_producer_id:
                    state.record(header, header.base_offset, limits=limits)
    return state


def _path(directory: str, offset: int) -> str:
    return f"{directory}/{offset_file_name(offset, SNAPSHOT_SUFFIX)}"
