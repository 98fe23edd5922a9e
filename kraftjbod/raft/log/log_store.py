"""DISK. ``RaftLogStore``: entries, term and vote, and snapshots in the metadata log directory.

Files in ``__cluster_metadata-0/``:

* ``<20-digit offset>.log``: entries in Kafka's log format, one batch each (entry_batch.py);
* ``quorum-state``: term and vote as JSON, and the synced and the committed offset at that time,
  replaced atomically;
* ``<20-digit end offset>-<10-digit term>.checkpoint``: the whole state before the end offset.

Rules:

* Bytes count as written once they are synced, and are used only after a check of their CRC.
* A torn end of the log is truncated. A bad entry that had been durable is an error instead. If
  other voters have the entry, this replica drops its log from there on and is mute
  (damaged_end.py).
* An entry had been durable if another entry follows it, or if ``quorum-state`` says so. That file
  is written with each term and at a stop, and before a truncation. The log never ends before the
  offset in it.
* A bad snapshot is ignored if an older snapshot, or the whole log, can replace it. A snapshot found
  damaged by a read is not used any more, and is removed once a newer one is durable.
* A log prefix is removed only after the snapshot that replaces it is durable.
* A suffix is removed, newest entry first, if another leader has other entries there. Entries that a
  snapshot covers are never truncated.
* An operation that finds no free space is undone, so that it may be repeated.
* A lower bound of the committed offset is written with each append, term, vote and at a stop. It
  needs no additional sync. If the last bound is lost, an earlier one is used.

All code runs in the metadata directory's thread. snapshot_files.py writes the files of snapshots.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError, InconsistentStorageError
from kraftjbod.core.request_limits import MAX_ENTRIES_PER_READ
from kraftjbod.raft.log.damaged_end import (
    DamagedLogError,
    made_mute,
    set_end_aside,
    set_file_aside,
)
from kraftjbod.raft.log.entry_batch import (
    StoredEntry,
    decode_entry_batch,
    encode_entry_batch,
)
from kraftjbod.raft.log.quorum_state import (
    QuorumState,
    decode_quorum_state,
    encode_quorum_state,
)
from kraftjbod.raft.log.snapshot_files import (
    PART_SUFFIX,
    SNAPSHOT_FILE,
    Snapshot,
    SnapshotPart,
    load_snapshot,
    read_payload,
    snapshot_file_name,
)
from kraftjbod.raft.machine.entry_log import term_starts
from kraftjbod.raft.machine.messages import Entry, HardState, TermStart
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile, write_atomically

QUORUM_STATE: Final = "quorum-state"
_LOG_FILE: Final = re.compile(r"(\d{20})\.log")
_OFFSET: Final = struct.Struct(">q")
_SNAPSHOTS_KEPT: Final = 2
#: Number of entries after a bad one that are searched for as a proof of damage.
_RESYNC_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLog:
    """Content of the log at a start."""

    hard_state: HardState
    snapshot: Snapshot | None
    """The newest intact snapshot. :meth:`RaftLogStore.read_snapshot` returns its payload."""
    entries: tuple[Entry, ...]
    """The entries after the snapshot."""
    last_offset: int
    committed_offset: int
    """A lower bound of the committed offset; -1 if nothing is known."""
    terms: tuple[TermStart, ...]
    """Term starts among the entries that the snapshot covers and the log still has."""
    warnings: tuple[str, ...]
    """Sentences about data that was ignored or truncated."""


class SnapshotPiece(NamedTuple):
    """A piece of the payload of ``snapshot``, and the position of the next piece in bytes."""

    data: bytes
    next_position: int
    """-1 after the last piece."""
    snapshot: Snapshot


@dataclass(slots=True)
class _Segment:
    base_offset: int
    file: VfsFile
    size_bytes: int = 0
    #: Byte position of each entry.
    positions: list[int] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.positions)


class RaftLogStore:
    """Reads and writes the files of the metadata log: entries, term and vote, and snapshots. All
    methods must be called in the metadata directory's thread.
    """

    def __init__(
        self, *, vfs: Vfs, directory: str, segment_bytes: int, retained_entries: int
    ) -> None:
        """Create without reading a file. Call :meth:`open` first.

        :param segment_bytes: a larger segment is followed by a new one.
        :param retained_entries: how many entries before the newest snapshot stay readable.
        """
        self._vfs = vfs
        self.directory = self._directory = directory
        self._segment_bytes = segment_bytes
        self._retained_entries = retained_entries
        #: Contiguous segments; never empty once the store is open.
        self._segments: list[_Segment] = []
        #: Intact snapshots, oldest first.
        self._snapshots: list[Snapshot] = []
        #: Paths of snapshots that cannot be read.
        self._damaged: list[str] = []
        #: The content of quorum-state.
        self._noted = QuorumState()

    @property
    def start_offset(self) -> int:
        """Offset of the first entry in the files."""
        return self._segments[0].base_offset

    @property
    def _end_offset(self) -> int:
        """Offset after the last entry."""
        return self._segments[-1].next_offset if self._segments else 0

    @property
    def newest_snapshot(self) -> Snapshot | None:
        return self._snapshots[-1] if self._snapshots else None

    # --- start -----------------------------------------------------------------------------------

    def open(self, may_give_up: Callable[[StoredLog], bool] | None = None) -> StoredLog:
        """Read and check all files, and return their content.

        :param may_give_up: returns whether a damaged end of the log may be set aside, given the
            intact rest. The replica is mute then (:class:`HardState`). None: any damaged end is an
            error.
        :raises InconsistentStorageError: data that had been durable cannot be read; the message
            names the file.
        """
        self._vfs.make_dirs(self._directory)
        # An earlier process may have been killed before it synced the names of new files.
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self._directory.rpartition("/")[0])
            self._vfs.sync_dir(self._directory)
        names = [item.name for item in self._vfs.list_dir(self._directory)]
        warnings: list[str] = []
        self._read_quorum_state()
        self._load_snapshots(names, warnings)
        self._require_beginning(names, warnings)
        entries: list[StoredEntry] = []
        try:
            self._load_segments(names, warnings, entries)
            self._require_end()
        except DamagedLogError as e:
            intact = self._stored(entries, warnings)
            # Without a recorded term, no new term is certainly above all earlier ones.
            if may_give_up is None or not self._noted.hard_state.term or not may_give_up(intact):
                raise
            self._require_term(intact)
            self.write_hard_state(made_mute(self._noted.hard_state))
            self._give_up_end(names)
            warnings.append(f"{e.what}; the rest of the log was discarded")
        snapshot = self.newest_snapshot
        covered = -1 if snapshot is None else snapshot.last_offset
        is_of_another = snapshot is not None and any(
            entry.offset == covered and entry.term != snapshot.term for entry, *_ in entries
        )
        if is_of_another:
            warnings.append(f"a crash left a log that does not lead to snapshot {covered}")
        if not self._segments or self._segments[-1].next_offset <= covered or is_of_another:
            # The snapshot is newer than the log, or was about to replace it: continue after it.
            self._drop_newest(len(self._segments))
            self._roll(covered + 1)
            entries = []
        stored = self._stored(entries, warnings)
        self._require_term(stored)
        return stored

    def _stored(self, found: Sequence[StoredEntry], warnings: Sequence[str]) -> StoredLog:
        snapshot = self.newest_snapshot
        covered = -1 if snapshot is None else snapshot.last_offset
        last_offset = self._segments[-1].next_offset - 1 if self._segments else covered
        committed = [
            covered,
            self._noted.committed_offset,
            *(one.committed_offset for one in found),
        ]
        return StoredLog(
            hard_state=self._noted.hard_state,
            snapshot=snapshot,
            entries=tuple(entry for entry, *_ in found if entry.offset > covered),
            last_offset=last_offset,
            committed_offset=min(max(committed), last_offset),
            terms=term_starts(entry for entry, *_ in found if entry.offset <= covered),
            warnings=tuple(warnings),
        )

    def _require_beginning(self, names: Iterable[str], warnings: Sequence[str]) -> None:
        bases, snapshot = _bases(names), self.newest_snapshot
        if bases and bases[0] > (0 if snapshot is None else snapshot.last_offset + 1):
            found = "; ".join(warnings) or "there is no snapshot"
            raise InconsistentStorageError(
                f"{self._path(_log_name(bases[0]))} begins after the newest snapshot that can be "
                f"read ({found}); restore the metadata directory from a backup"
            )

    def _require_end(self) -> None:
        snapshot = self.newest_snapshot
        end = max(self._end_offset, 0 if snapshot is None else snapshot.last_offset + 1)
        if end < self._noted.log_end:
            raise DamagedLogError(
                f"{self._directory} ends at {end}, and had been synced up to {self._noted.log_end}"
            )

    def _require_term(self, stored: StoredLog) -> None:
        snapshot, entries = stored.snapshot, stored.entries
        last_term = entries[-1].term if entries else (snapshot.term if snapshot else 0)
        if stored.hard_state.term < last_term:
            raise InconsistentStorageError(
                f"{self._path(QUORUM_STATE)} says term {stored.hard_state.term}, but the log has "
                f"entries of term {last_term}; the file is missing or from another time"
            )

    def _read_quorum_state(self) -> None:
        path = self._path(QUORUM_STATE)
        text = self._vfs.read_if_exists(path)
        if text is None:
            return
        try:
            self._noted = decode_quorum_state(bytes(text))
        except CorruptRecordError as e:
            raise InconsistentStorageError(
                f"{path} is damaged ({e.message}); restore it from a backup"
            ) from e

    def _load_snapshots(self, names: Iterable[str], warnings: list[str]) -> None:
        """Load the intact snapshots, and remove leftovers of unfinished ones."""
        found = []
        for name in names:
            if name.endswith(PART_SUFFIX):
                self._vfs.unlink_if_exists(self._path(name))
            elif matched := SNAPSHOT_FILE.fullmatch(name):
                found.append((int(matched[1]) - 1, int(matched[2]), name))
        for last_offset, term, name in sorted(found, reverse=True):
            file = self._vfs.open(self._path(name), OpenMode.READ)
            snapshot = load_snapshot(file, last_offset, term)
            file.close()
            if snapshot is None:
                warnings.append(f"snapshot {self._path(name)} is damaged and was passed over")
                self._damaged.append(self._path(name))
                continue
            self._snapshots.insert(0, snapshot)

    def _load_segments(
        self, names: Iterable[str], warnings: list[str], entries: list[StoredEntry]
    ) -> None:
        """Load the entries of all segments into ``entries``.

        :raises DamagedLogError: ``entries`` then holds the entries before the damage.
        """
        bases = _bases(names)
        for base in bases:
            if self._segments and self._segments[-1].next_offset != base:
                raise DamagedLogError(
                    f"{self._path(_log_name(base))} does not continue the log, which ends at "
                    f"{self._segments[-1].next_offset}"
                )
            self._load_segment(base, entries, is_last=base == bases[-1], warnings=warnings)

    def _load_segment(
        self, base: int, entries: list[StoredEntry], *, is_last: bool, warnings: list[str]
    ) -> None:
        path = self._path(_log_name(base))
        file = self._vfs.open(path, OpenMode.READ_WRITE)
        if is_last:
            # Entries that are found here count as durable. An earlier process may have been killed
            # before its fsync, or ended by a failed fsync: then pages in memory count as clean,
            # although the disk does not have their bytes.
            with FailsAs(OpKind.FLUSH):
                file.sync()
            file.forget_cached(0, file.size())
        data = file.read_at(0, file.size())
        segment = _Segment(base, file)
        self._segments.append(segment)
        while segment.size_bytes < len(data):
            try:
                stored = decode_entry_batch(data, segment.size_bytes, segment.next_offset)
            except CorruptRecordError as e:
                self._require_torn(path, data, segment, e, is_last=is_last)
                warnings.append(
                    f"{path}: {len(data) - segment.size_bytes} bytes of an unfinished write "
                    f"were truncated at {segment.size_bytes}"
                )
                file.truncate(segment.size_bytes)
                with FailsAs(OpKind.FLUSH):
                    file.sync()
                break
            segment.positions.append(segment.size_bytes)
            segment.size_bytes += stored.size_bytes
            entries.append(stored)

    def _give_up_end(self, names: Iterable[str]) -> None:
        """Rename or move the files and bytes after the loaded entries to ``.damaged`` files."""
        if not self._segments:
            return
        last = self._segments[-1]
        for base in reversed([base for base in _bases(names) if base > last.base_offset]):
            set_file_aside(self._vfs, self._path(_log_name(base)))
        if last.file.size() > last.size_bytes:
            path = self._path(_log_name(last.base_offset))
            set_end_aside(self._vfs, path, last.file, last.size_bytes, last.next_offset)

    def _require_torn(
        self,
        path: str,
        data: bytes | bytearray,
        segment: _Segment,
        error: CorruptRecordError,
        *,
        is_last: bool,
    ) -> None:
        """Raise an error unless the bad entry is an unfinished write of a crash.

        :raises DamagedLogError: the entry had been durable, so it is damage.
        """
        bad = segment.next_offset
        was_durable = not is_last or bad < self._noted.log_end
        for offset in range(bad + 1, bad + 1 + _RESYNC_ENTRIES):
            at = data.find(_OFFSET.pack(offset), segment.size_bytes + 1)
            was_durable |= at >= 0 and _append_start(data, at, offset) > bad
        if was_durable:
            raise DamagedLogError(
                f"{path} is damaged at byte {segment.size_bytes}, entry {bad} ({error.message}), "
                "and had been synced, so this is no unfinished write"
            )

    # --- entries ---------------------------------------------------------------------------------

    def append_entries(
        self, entries: Sequence[Entry], wall_ms: int, *, committed_offset: int = -1
    ) -> None:
        """Write ``entries`` in one write, and sync. A longer log is truncated first.

        If there is no space, the log ends before ``entries``, and the call may be repeated.

        :param wall_ms: timestamp of the batches.
        :param committed_offset: a lower bound of the offset that is committed and durable here.
        """
        if entries[0].offset < self._segments[-1].next_offset:
            self._truncate(entries[0].offset)
        if self._segments[-1].size_bytes > self._segment_bytes:
            self._roll(entries[0].offset)
        segment = self._segments[-1]
        assert entries[0].offset == segment.next_offset, (entries[0], segment.next_offset)
        start = entries[0].offset
        batches = [
            encode_entry_batch(
                entry, append_start=start, committed_offset=committed_offset, wall_ms=wall_ms
            )
            for entry in entries
        ]
        with Undoing(lambda: segment.file.truncate(segment.size_bytes)):
            segment.file.write_at(segment.size_bytes, batches)
        with FailsAs(OpKind.FLUSH):
            segment.file.sync()
        for batch in batches:
            segment.positions.append(segment.size_bytes)
            segment.size_bytes += len(batch)

    def _truncate(self, offset: int) -> None:
        """Durably remove entries from ``offset`` on, none of which a snapshot covers.

        The newest entries are removed first, step by step. So a crash leaves a log without gaps,
        and no old entry can follow an entry that is written later.
        """
        newest = self.newest_snapshot
        assert newest is None or offset > newest.last_offset, (offset, newest)
        self._lower_noted_end(offset)
        count = sum(s.base_offset <= offset for s in self._segments)
        self._drop_newest(len(self._segments) - count)
        segment = self._segments[-1]
        index = offset - segment.base_offset
        if index < len(segment.positions):
            size_bytes = segment.positions[index]
            segment.file.truncate(size_bytes)
            segment.size_bytes = size_bytes
            del segment.positions[index:]
            with FailsAs(OpKind.FLUSH):
                segment.file.sync()

    def write_hard_state(self, hard_state: HardState, *, committed_offset: int = -1) -> None:
        """Write term and vote to ``quorum-state``, with the present log end.

        :param committed_offset: as in :meth:`append_entries`.
        """
        committed_offset = max(committed_offset, self._noted.committed_offset)
        self._write_quorum_state(
            QuorumState(
                hard_state,
                self._end_offset,
                # The committed offset may be part of the end that is about to be dropped.
                min(committed_offset, self._end_offset - 1),
            )
        )

    def _lower_noted_end(self, end: int) -> None:
        """Lower the log end in ``quorum-state`` to ``end`` if it is higher, before a deliberate
        truncation.
        """
        if end < self._noted.log_end:
            self._write_quorum_state(self._noted._replace(log_end=end))

    def _write_quorum_state(self, state: QuorumState) -> None:
        write_atomically(self._vfs, self._path(QUORUM_STATE), encode_quorum_state(*state))
        self._noted = state

    def read(
        self, from_offset: int, max_bytes: int, max_entries: int = MAX_ENTRIES_PER_READ
    ) -> list[Entry]:
        """Return entries of one segment from ``from_offset`` on, at least one.

        They begin within ``max_bytes`` after the first one. The result is empty if the log does not
        contain ``from_offset``.

        :raises CorruptRecordError: an entry does not match its CRC.
        """
        at = bisect_right(self._segments, from_offset, key=lambda s: s.base_offset) - 1
        if at < 0 or from_offset >= self._segments[at].next_offset:
            return []
        segment = self._segments[at]
        first = from_offset - segment.base_offset
        begin = segment.positions[first]
        stop = bisect_right(segment.positions, begin + max_bytes, lo=first + 1)
        stop = min(stop, first + max_entries)
        end = segment.positions[stop] if stop < len(segment.positions) else segment.size_bytes
        data = segment.file.read_at(begin, end - begin)
        entries: list[Entry] = []
        position = 0
        while position < len(data):
            stored = decode_entry_batch(data, position, from_offset + len(entries))
            entries.append(stored.entry)
            position += stored.size_bytes
        return entries

    def close(self, *, committed_offset: int = -1) -> None:
        """Record the log end, so that the next start can distinguish damage from a torn write.
        Close all files.

        :param committed_offset: as in :meth:`append_entries`.
        """
        noted = self._noted
        try:
            if self._end_offset > noted.log_end or committed_offset > noted.committed_offset:
                self.write_hard_state(noted.hard_state, committed_offset=committed_offset)
        finally:
            for segment in self._segments:
                segment.file.close()
            self._segments.clear()

    # --- snapshots -------------------------------------------------------------------------------

    def begin_snapshot(self, last_offset: int, term: int, voters: bytes = b"") -> SnapshotPart:
        """Return an empty snapshot to write to, under a name that loading ignores.

        :param voters: the encoded voter set at its end, see :class:`Snapshot`.
        """
        path = self._path(snapshot_file_name(last_offset, term)) + PART_SUFFIX
        return SnapshotPart(self._vfs, path, last_offset, term, voters)

    def install_snapshot(
        self, snapshot: Snapshot, *, replaces_log: bool = False, in_use: Collection[int] = ()
    ) -> int:
        """Rename the written part to its final name, then remove old snapshots and log segments.

        :param replaces_log: whether the snapshot is of another replica and replaces the whole log.
        :param in_use: last offsets of snapshots that are being sent. Those snapshots stay, and so
            do all later entries, which the receiver needs next.
        :returns: the first offset of the log.
        """
        if replaces_log:
            self._lower_noted_end(snapshot.last_offset + 1)
        path = self._path(snapshot.file_name)
        self._vfs.rename(path + PART_SUFFIX, path)
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self._directory)
        self._take_snapshot(snapshot, in_use)
        if replaces_log:
            self._drop_newest(len(self._segments))
            self._roll(snapshot.last_offset + 1)
            return self.start_offset
        if self._segments[-1].positions:
            self._roll(self._segments[-1].next_offset)
        # If the newest snapshot is found damaged, the previous one or the whole log must replace
        # it. So only segments before the oldest kept snapshot are removed.
        oldest = self._snapshots[0].last_offset if len(self._snapshots) > 1 else -1
        wanted = min(oldest, snapshot.last_offset - self._retained_entries) + 1
        self._drop_segments(sum(s.next_offset <= wanted for s in self._segments[:-1]))
        return self.start_offset

    def _take_snapshot(self, snapshot: Snapshot, in_use: Collection[int]) -> None:
        """Register a durable ``snapshot``, and remove old and damaged ones.

        Its file may have replaced a damaged one of the same name.
        """
        path = self._path(snapshot.file_name)
        self._snapshots = [one for one in self._snapshots if one.file_name != snapshot.file_name]
        self._snapshots.append(snapshot)
        old = [one for one in self._snapshots[:-_SNAPSHOTS_KEPT] if one.last_offset not in in_use]
        for needless in (*(self._path(one.file_name) for one in old), *self._damaged):
            if needless != path:
                self._vfs.unlink_if_exists(needless)
        self._snapshots = [one for one in self._snapshots if one not in old]
        self._damaged.clear()

    def read_snapshot(
        self, last_offset: int, position: int, max_bytes: int
    ) -> SnapshotPiece | None:
        """Return a piece of a snapshot's payload; None if there is no such snapshot.

        :raises CorruptRecordError: the snapshot is damaged. Later calls return None.
        """
        found = [s for s in self._snapshots if s.last_offset == last_offset]
        if not found:
            return None
        snapshot = found[0]
        path = self._path(snapshot.file_name)
        try:
            data = read_payload(self._vfs, path, snapshot, position, max_bytes)
        except CorruptRecordError:
            self._snapshots.remove(snapshot)
            self._damaged.append(path)
            raise
        after = position + len(data)
        return SnapshotPiece(data, -1 if after >= snapshot.size_bytes else after, snapshot)

    # --- files -----------------------------------------------------------------------------------

    def _roll(self, base_offset: int) -> None:
        path = self._path(_log_name(base_offset))
        file = self._vfs.open(path, OpenMode.CREATE)
        with Undoing(file.close):
            file.truncate(0)
            with FailsAs(OpKind.FLUSH):
                file.sync()
                self._vfs.sync_dir(self._directory)
        self._segments.append(_Segment(base_offset, file))

    def _drop_segments(self, count: int) -> None:
        """Remove the oldest ``count`` segments, oldest first, so that a crash leaves no gap."""
        for segment in self._segments[:count]:
            segment.file.close()
            self._vfs.unlink_if_exists(self._path(_log_name(segment.base_offset)))
        del self._segments[:count]

    def _drop_newest(self, count: int) -> None:
        """Remove the newest ``count`` segments, newest first, durably before anything else is
        written.
        """
        if not count:
            return
        for segment in reversed(self._segments[-count:]):
            segment.file.close()
            self._vfs.unlink_if_exists(self._path(_log_name(segment.base_offset)))
        del self._segments[-count:]
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self._directory)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _bases(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segment files among ``names``, in ascending order."""
    return sorted(int(matched[1]) for name in names if (matched := _LOG_FILE.fullmatch(name)))


def _log_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def _append_start(data: bytes | bytearray, position: int, offset: int) -> int:
    """Return the first offset of the append that wrote ``offset``.

    Returns -1 if no intact batch of that entry is at ``position``.
    """
    try:
        return decode_entry_batch(data, position, offset).append_start
    except CorruptRecordError:
        return -1
