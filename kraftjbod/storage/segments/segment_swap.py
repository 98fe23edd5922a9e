"""DISK. ``SegmentSwap``: replaces segments by the compacted segment that was made from them.

After a crash at any point, either all old segments or the new one are used. The steps, with Kafka's
suffixes:

1. The new segment is written to ``<base>.log.cleaned`` and synced. Loading removes such a file.
2. The file is renamed to ``<base>.log.swap``, durably. From now on it is the log, and loading
   completes the remaining steps.
3. The old segments get the suffix ``.deleted``, the newest first.
4. The new segment becomes ``<base>.log``.

The index of aborted transactions is renamed before the segment in each step. It replaces the index
of the first old segment. It cannot be rebuilt, so the new segment has one, possibly empty, if an
old segment had one.

The new segment has the base offset of the oldest old segment. It ends where the newest old one
ended, because the last batch of a group is always kept. So the file itself tells which segments it
replaces.

If step 3 or 4 fails for lack of space, :meth:`SegmentSwap.finish` is called again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from kraftjbod.storage.dir_names import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_file_name,
    parse_offset_file,
)
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.steps import SEEK_BYTES, Steps
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile, sync_renamed

_REMADE_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class CleaningFiles(NamedTuple):
    """Open files for the thread that compacts a group of segments.

    Only the directory's thread creates, renames and removes names.
    """

    #: Open files of the old segments.
    sources: tuple[VfsFile, ...]
    #: Empty segment whose file is the ``.cleaned`` file.
    target: LogSegment
    #: The log's number of truncations. Data read before a later truncation is invalid.
    truncations: int

    def close_sources(self) -> None:
        for file in self.sources:
            file.close()


def place_of(sources: Sequence[LogSegment], segments: Sequence[LogSegment]) -> int | None:
    """Return the index of the first of ``sources`` in ``segments``.

    Returns None unless the sources are neighbours there, without the active segment.
    """
    at = bisect_left(segments, sources[0].base_offset, key=lambda s: s.base_offset)
    return at if list(segments[at:-1][: len(sources)]) == list(sources) else None


def open_sources(vfs: Vfs, sources: Sequence[LogSegment]) -> tuple[VfsFile, ...]:
    """Open the files of the sources once more, for a cleaner.

    Other readers use their own open files.
    """
    opened: list[VfsFile] = []

    def undo() -> None:
        for file in opened:
            file.close()

    with Undoing(undo):
        opened.extend(vfs.open(source.path, OpenMode.READ) for source in sources)
    return tuple(opened)


def open_target(vfs: Vfs, target: LogSegment) -> None:
    """Create and open the ``.cleaned`` file of ``target``. If that fails, no such file remains."""
    with Undoing(lambda: vfs.unlink_if_exists(target.path + CLEANED_SUFFIX)):
        target.file = vfs.open(target.path + CLEANED_SUFFIX, OpenMode.CREATE)
        with Undoing(target.close):
            target.file.truncate(0)


def discard_target(vfs: Vfs, files: CleaningFiles) -> None:
    """Close the files of the sources, and close and remove those of the target, after a pass that
    has not put the target in place.
    """
    files.close_sources()
    files.target.close()
    vfs.unlink_if_exists(files.target.path + CLEANED_SUFFIX)
    for suffix in (CLEANED_SUFFIX, SWAP_SUFFIX):
        vfs.unlink_if_exists(files.target.transactions_path + suffix)


def write_target_transactions(sources: Sequence[LogSegment], target: LogSegment) -> None:
    """Write the target's index of aborted transactions, synced, if the target or a source has
    one.
    """
    if target.transactions or any(one.transactions is None or one.transactions for one in sources):
        target.write_transactions(sync=True, suffix=CLEANED_SUFFIX)


class SegmentSwap:
    """Replaces the old segments ``sources`` by the compacted segment ``target``, which is complete
    and synced. After a crash in between, loading uses either all of them or the new one.

    Its methods run in the directory's thread.
    """

    def __init__(self, vfs: Vfs, sources: Sequence[LogSegment], target: LogSegment) -> None:
        assert target.base_offset == sources[0].base_offset, (sources, target)
        self._vfs = vfs
        self.sources = tuple(sources)
        self.target = target

    def begin_swap(self) -> None:
        """Rename the target to ``.log.swap``, durably: from now on loading uses it in place of the
        sources.

        If a rename fails, the sources remain the log.
        """
        self._rename_target(CLEANED_SUFFIX, SWAP_SUFFIX)
        with FailsAs(OpKind.FLUSH):
            sync_renamed(
                self._vfs,
                self.target.directory,
                lambda: self._rename_target(SWAP_SUFFIX, CLEANED_SUFFIX),
            )

    def _rename_target(self, former: str, suffix: str) -> None:
        for path in (self.target.transactions_path, self.target.path):
            if self._vfs.exists(path + former):
                self._vfs.rename(path + former, path + suffix)

    def finish(self) -> None:
        """Give the old segments the suffix ``.deleted`` and the new one its final name, durably.
        Only after :meth:`begin_swap`. May be repeated after a failure.
        """
        path, transactions = self.target.path, self.target.transactions_path
        if self._vfs.exists(path + SWAP_SUFFIX):
            for source in reversed(self.sources):
                source.retire()
                if source is not self.sources[0]:  # The target's index replaces that of the first.
                    self._vfs.unlink_if_exists(source.transactions_path)
            if self._vfs.exists(transactions + SWAP_SUFFIX):
                self._vfs.rename(transactions + SWAP_SUFFIX, transactions)
            self._vfs.rename(path + SWAP_SUFFIX, path)
        self.target.write_indexes(sync=True)
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self.target.directory)


def finish_swaps(vfs: Vfs, directory: str, names: Sequence[str]) -> Steps[bool]:
    """Complete the swaps in ``directory`` that a crash interrupted after step 2. Called at load.

    :param names: the names of all files in ``directory``.
    :returns: whether there was a swap, so that the names have changed.
    """
    has_changed = False
    bases = [found[0] for name in names if (found := parse_offset_file(name)) is not None]
    for name in names:
        found = parse_offset_file(name.removesuffix(SWAP_SUFFIX))
        if not name.endswith(SWAP_SUFFIX) or found is None or found[1] != LOG_SUFFIX:
            continue
        has_changed = True
        end_offset = yield from _end_of(vfs, directory, name, found[0])
        for base in sorted({base for base in bases if found[0] <= base < end_offset}, reverse=True):
            suffixes = _REMADE_SUFFIXES if base == found[0] else (*INDEX_SUFFIXES, LOG_SUFFIX)
            for suffix in suffixes:
                vfs.unlink_if_exists(f"{directory}/{offset_file_name(base, suffix)}")
                yield SEEK_BYTES
        transactions = f"{directory}/{offset_file_name(found[0], TRANSACTION_INDEX_SUFFIX)}"
        if vfs.exists(transactions + SWAP_SUFFIX):
            vfs.rename(transactions + SWAP_SUFFIX, transactions)
        vfs.rename(f"{directory}/{name}", f"{directory}/{offset_file_name(*found)}")
        vfs.sync_dir(directory)
    return has_changed


def _end_of(vfs: Vfs, directory: str, name: str, base_offset: int) -> Steps[int]:
    """Return the offset after the last batch of a ``.swap`` file."""
    file = vfs.open(f"{directory}/{name}", OpenMode.READ)
    segment = LogSegment(
        vfs=vfs,
        directory=directory,
        base_offset=base_offset,
        size_bytes=file.size(),
        index_interval_bytes=0,
        may_have_gaps=True,
    )
    segment.file = file
    try:
        scanned = yield from segment.scan_steps(check_crc_of_each=False)
    finally:
        segment.close()
    return scanned.next_offset
