"""DISK. Values that go in and out of one replica's log: results, flush plans, contents.

They belong to nobody: the dir's thread makes them, and the loop may hold them. The only thing that
is done here is the slow half of a flush, which touches nothing that a log owns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from kraftjbod.storage.log.leader_epochs import EpochEntries
from kraftjbod.storage.log.log_view import LogView
from kraftjbod.storage.log.producer_state import ProducerState
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.vfs import Vfs, VfsFile


class AppendResult(NamedTuple):
    """Where the records went; ``duplicate`` if they were there already."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class FoundTimestamp(NamedTuple):
    """What answers a question for a time."""

    timestamp: int
    offset: int
    leader_epoch: int


class FlushPlan(NamedTuple):
    """What must be synced so that the recovery point may become ``end_offset``."""

    files: tuple[VfsFile, ...]
    directory: str
    end_offset: int
    #: How often the log had been truncated; a plan from before a truncation says nothing.
    truncations: int
    #: Index files that loading trusts once all below ``end_offset`` is certain; a name that is
    #: gone is no longer needed.
    index_paths: tuple[str, ...] = ()
    #: Temporary files that replace others once they are synced, and the names that they get.
    replacements: tuple[tuple[str, str], ...] = ()


class CarriedState(NamedTuple):
    """What a copy of a log needs besides the bytes of its segments; all of it as of one moment."""

    view: LogView
    #: As in a ``.snapshot`` file for ``view.log_end_offset``.
    producers: bytes
    #: Contents of the newest snapshot files, by their offsets: a truncation goes back to them.
    snapshots: Mapping[int, bytes]
    #: Of the active segment, by suffix.
    index_files: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """What loading found; the newest segment is the active one and there is at least one."""

    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: EpochEntries
    #: What their file says, be it more or less than is so; None if that is not known.
    epochs_on_disk: EpochEntries | None
    producers: ProducerState
    #: Size of the batches that were replayed after the newest snapshot.
    replayed_bytes: int = 0
    #: ``producers`` is what the snapshot of the log's end says, and that is durable.
    is_snapshot_durable: bool = False
    #: Offsets of the snapshot files; None: they are not listed yet.
    snapshot_offsets: Sequence[int] | None = None
    #: Compaction has taken offsets away, or may have: see ``dir_names.GAPS_MARK``.
    may_have_gaps: bool = False
    #: Ranges that are known to be lost, in ascending order.
    damages: tuple[Damage, ...] = ()


def carry_out(vfs: Vfs, plans: Sequence[FlushPlan], beat: Callable[[], None]) -> None:
    """The slow half of a flush: touches nothing that a log owns, so it may run beside appends.

    Many plans together take less time than one after the other, because fsyncs that run at the same
    time share commits of the file system's journal. syncfs(2) instead would also write, without
    progress, the data of other directories on that file system.

    Cost: an fsync of each file and directory. ``beat`` reports progress after each.
    """
    with FailsAs(OpKind.FLUSH):
        vfs.sync_side_by_side([sync for plan in plans for sync in _syncs(vfs, plan)], beat)
        for plan in plans:
            for temporary, path in plan.replacements:
                with FailsAs(OpKind.CHECKPOINT):
                    vfs.rename(temporary, path)
        vfs.sync_side_by_side([partial(vfs.sync_dir, plan.directory) for plan in plans], beat)


def _syncs(vfs: Vfs, plan: FlushPlan) -> Iterator[Callable[[], None]]:
    for file in plan.files:
        yield file.sync
    for path in (*plan.index_paths, *(temporary for temporary, _ in plan.replacements)):
        yield partial(sync_if_exists, vfs, path)


def sync_if_exists(vfs: Vfs, path: str) -> None:
    """Bring the bytes of the file to the disk; its name is the caller's part."""
    file = vfs.open_if_exists(path)
    if file is not None:
        try:
            file.sync()
        finally:
            file.close()
