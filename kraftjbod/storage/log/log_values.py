"""DISK. Values that one replica's log takes and returns: results, flush plans, contents.

The directory's thread creates them, and the event loop may keep them. :func:`carry_out` is the slow
part of a flush, which uses no state of a log.
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
    """Offsets of appended records, both inclusive, and the log start offset.

    ``log_append_time_ms`` is wall-clock time, -1 if the records keep the producer's timestamps.
    With ``duplicate`` the records were already in the log, at these offsets, and nothing was
    written.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class FoundTimestamp(NamedTuple):
    """The record that a search by timestamp has found: timestamp (wall ms), offset and leader
    epoch.
    """

    timestamp: int
    offset: int
    leader_epoch: int


class FlushPlan(NamedTuple):
    """Files to sync in one flush of a log. Only after that may its recovery point become
    ``end_offset``.
    """

    files: tuple[VfsFile, ...]
    #: Path of the replica's directory, which is synced too.
    directory: str
    end_offset: int
    #: The log's number of truncations. A plan from before a later truncation is invalid.
    truncations: int
    #: Index files that loading trusts below the recovery point. Missing files are skipped.
    index_paths: tuple[str, ...] = ()
    #: Temporary files that replace others once they are synced, and the names that they get.
    replacements: tuple[tuple[str, str], ...] = ()


class CarriedState(NamedTuple):
    """State of a log at one moment that a future copy needs besides the bytes of the segments."""

    view: LogView
    #: Content of a ``.snapshot`` file for ``view.log_end_offset``.
    producers: bytes
    #: Contents of the newest snapshot files, by their offsets, for later truncations.
    snapshots: Mapping[int, bytes]
    #: Index files of the active segment, by suffix.
    index_files: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """Everything that a ``UnifiedLog`` starts with: the result of loading or creating a log. The
    last one of ``segments`` is active.
    """

    segments: list[LogSegment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: EpochEntries
    #: Content of the epochs' file, which may differ from ``epochs``; None if it is unknown.
    epochs_on_disk: EpochEntries | None
    producers: ProducerState
    #: Size of the batches that were replayed after the newest snapshot.
    replayed_bytes: int = 0
    #: A durable snapshot at the log end has the content of ``producers``.
    is_snapshot_durable: bool = False
    #: Offsets of the snapshot files; None if they are not listed yet.
    snapshot_offsets: Sequence[int] | None = None
    #: Compaction may have removed offsets: see ``dir_names.GAPS_MARK``.
    may_have_gaps: bool = False
    #: Ranges that are known to be lost, in ascending order.
    damages: tuple[Damage, ...] = ()


def carry_out(
    vfs: Vfs,
    plans: Sequence[FlushPlan],
    beat: Callable[[], None],
    *,
    renamed: set[str] | None = None,
) -> None:
    """Sync the files of ``plans``, rename their replacements, and sync their directories.

    No state of a log is used, so appends may run meanwhile. Many plans together take less time than
    one after the other, because fsyncs that run at the same time share commits of the file system's
    journal. syncfs(2) instead would also write, without progress, the data of other directories on
    that file system.

    Cost: an fsync of each file and directory. ``beat`` reports progress after each.

    :param renamed: temporary files that are renamed already and are skipped. The call adds those
        that it renames, so a caller that repeats a failed call passes the same set.
    """
    renamed = set() if renamed is None else renamed
    with FailsAs(OpKind.FLUSH):
        vfs.sync_side_by_side([sync for plan in plans for sync in _syncs(vfs, plan)], beat)
        for plan in plans:
            for temporary, path in plan.replacements:
                if temporary not in renamed:
                    with FailsAs(OpKind.CHECKPOINT):
                        vfs.rename(temporary, path)
                    renamed.add(temporary)
        vfs.sync_side_by_side([partial(vfs.sync_dir, plan.directory) for plan in plans], beat)


def _syncs(vfs: Vfs, plan: FlushPlan) -> Iterator[Callable[[], None]]:
    for file in plan.files:
        yield file.sync
    for path in (*plan.index_paths, *(temporary for temporary, _ in plan.replacements)):
        yield partial(sync_if_exists, vfs, path)


def sync_if_exists(vfs: Vfs, path: str) -> None:
    """Open and sync the file ``path``, if it exists. The caller syncs the directory."""
    file = vfs.open_if_exists(path)
    if file is not None:
        try:
            file.sync()
        finally:
            file.close()
