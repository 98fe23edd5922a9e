"""DISK. Listing the replicas of a log directory, loading a replica, and creating one.

* After a clean stop, loading reads only names, some small files and the end of the newest segment.
  The last batch has to be sound and to end at the recovery point of the checkpoint.
* The oldest segment has to contain the log start offset that the files tell. If that segment is
  lost, the log keeps its start offset, and the missing offsets are damage.
* After an unclean stop, each batch from the recovery point's segment on is checked. The log ends
  before the first byte that is not sound, and later segments are removed.
* An unreadable ``partition.metadata`` raises :class:`CorruptCheckpointError`. Without readable
  leader epochs the replica is scanned from its start.
* Loading works in steps (steps.py), because other replicas of the directory may be served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.checkpoints import (
    CorruptCheckpointError,
    format_partition_metadata,
    parse_leader_epochs,
    parse_partition_metadata,
)
from kraftjbod.storage.dir_names import (
    CLUSTER_METADATA_DIR,
    EXPIRED_SUFFIX,
    FUTURE_CHECKPOINT,
    GAPS_MARK,
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LEFTOVER_SUFFIXES,
    LOG_SUFFIX,
    OWN_FILES,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    ReplicaDir,
    ReplicaDirKind,
    offset_file_name,
    parse_offset_file,
    parse_replica_dir,
)
from kraftjbod.storage.log.leader_epochs import (
    EpochEntries,
    EpochEntry,
    assign_epoch,
    truncate_epochs_before,
    truncate_epochs_from,
)
from kraftjbod.storage.log.log_values import LogContent
from kraftjbod.storage.log.producer_recovery import ProducerRecovery
from kraftjbod.storage.log.producer_snapshots import LoadedProducers, ProducerSnapshots
from kraftjbod.storage.log.producer_state import (
    DEFAULT_PRODUCER_LIMITS,
    ProducerLimits,
    ProducerState,
)
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.batch_runs import SoundRun
from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.storage.segments.segment import LogSegment, take_back
from kraftjbod.storage.segments.segment_indexes import BELOW_EPOCHS
from kraftjbod.storage.segments.segment_swap import finish_swaps
from kraftjbod.storage.segments.steps import (
    SEEK_BYTES,
    STAT_BYTES,
    STEP_BYTES,
    Steps,
    run_all,
    take_step,
)
from kraftjbod.storage.vfs import DirEntry, Undoing, Vfs, remove_part, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class DirListing:
    """Replicas in a log directory, and the ``unknown`` names, which do not belong to this
    program.
    """

    replicas: Sequence[ReplicaDir]
    unknown: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedLog:
    """Result of loading a replica.

    - ``scanned_bytes``: checked by recovery; 0 if the clean end was found.
    - ``truncated_bytes``: removed because they were not sound or not reachable.
    - ``was_future``: the replica was created by a move, and was not loaded since.
    """

    log: UnifiedLog
    scanned_bytes: int
    truncated_bytes: int
    was_future: bool


def list_log_dir(vfs: Vfs, path: str) -> DirListing:
    """Return the replicas and the unknown names in the log directory ``path``.

    :raises OSError: a current replica's name is a symbolic link, so its records may be on another
        disk.
    """
    replicas, unknown = [], []
    for entry in vfs.list_dir(path):
        if entry.name == CLUSTER_METADATA_DIR or entry.name.removesuffix(".tmp") in OWN_FILES:
            continue
        parsed = parse_replica_dir(entry.name)
        if parsed is not None and parsed.kind is ReplicaDirKind.CURRENT:
            entry.require_no_link(path)
        if parsed is None or not entry.is_dir:
            unknown.append(entry.name)
        else:
            replicas.append(parsed)
    return DirListing(replicas=replicas, unknown=unknown)


def create_log(
    vfs: Vfs,
    root: str,
    topic_partition: TopicPartition,
    topic_id: TopicId,
    config: TopicConfig,
    *,
    start_offset: int = 0,
    producer_limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
) -> UnifiedLog:
    """Create an empty replica in the log directory ``root``, durably.

    If this fails, it leaves nothing, or a directory that :func:`is_half_made` recognizes. The
    directory of the replica must not exist, or be such a directory: a failure removes it.

    :param start_offset: log start and end offset.
    """
    directory = f"{root}/{topic_partition}"
    vfs.make_dirs(directory)
    with Undoing(lambda: vfs.remove_tree(directory)):
        metadata = format_partition_metadata(topic_id)
        write_atomically(vfs, f"{directory}/{PARTITION_METADATA}", metadata)
        vfs.sync_dir(root)
        content = _create_empty(vfs, directory, config, start_offset)
    return UnifiedLog(
        vfs=vfs,
        directory=directory,
        topic_partition=topic_partition,
        topic_id=topic_id,
        config=config,
        content=content,
        producer_limits=producer_limits,
    )


def is_half_made(vfs: Vfs, directory: str) -> bool:
    """Return whether ``directory`` has no files but ``partition.metadata`` and an empty segment 0.

    An interrupted :func:`create_log` leaves such files. A new replica without records has them too.
    """
    return all(
        entry.name.removesuffix(".tmp") == PARTITION_METADATA
        or (entry.name == offset_file_name(0, LOG_SUFFIX) and entry.size_bytes == 0)
        for entry in vfs.list_dir(directory, sized=LOG_SUFFIX)
    )


class LogLoader:
    """Loads one existing replica from its files, and repairs it after an unclean stop. Runs in the
    directory's thread.

    Call :meth:`load`, or :meth:`step` until it returns the replica. A loader loads once.
    """

    def __init__(
        self,
        *,
        vfs: Vfs,
        directory: str,
        topic_partition: TopicPartition,
        config: TopicConfig,
        was_clean: bool,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        producer_limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    ) -> None:
        """Prepare loading.

        :param was_clean: whether the directory had a clean shutdown mark.
        :param log_start_offset: from the checkpoint; None if it has no entry.
        """
        self._vfs = vfs
        self._directory = directory
        self._topic_partition = topic_partition
        self._config = config
        self._was_clean = was_clean
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset or 0
        #: A clean stop wrote the log start offset. After a crash the log may start later.
        self._is_start_known = was_clean and log_start_offset is not None
        self._producer_limits = producer_limits
        self._epochs: EpochEntries = ()
        self._epochs_on_disk: EpochEntries | None = None
        #: The file of leader epochs was readable.
        self._has_epochs = False
        self._snapshots = ProducerSnapshots(vfs, lambda: directory)
        self._scanned_bytes = 0
        #: Result of recovery; None after a clean stop.
        self._producers: LoadedProducers | None = None
        self._truncated_bytes = 0
        self._was_future = False
        self._may_have_gaps = False
        self._work = self._load()

    def load(self) -> LoadedLog:
        """Run all steps of the load and return the replica. Raises as :meth:`step`."""
        return run_all(self._work)

    def step(self) -> LoadedLog | None:
        """Continue the load; return the replica when it is complete, else None.

        A failed load cannot be continued: it needs a new loader.

        Cost: about ``STEP_BYTES`` of the log, or a few small files. After a clean stop one step
        reads the small files, the last index interval and the sizes of 64 segments.

        :raises CorruptCheckpointError: the topic id cannot be read.
        """
        loaded = take_step(self._work)
        return loaded[0] if loaded else None

    def close(self) -> None:
        """Abandon a load that is not complete, and close its files."""
        self._work.close()

    def _load(self) -> Steps[LoadedLog]:
        topic_id = self._read_topic_id()
        self._has_epochs = self._read_epochs()
        segments = yield from self._find_segments()
        # The load may be repeated, and files have no finalizer.
        with Undoing(lambda: _close_files(segments)):
            log = UnifiedLog(
                vfs=self._vfs,
                directory=self._directory,
                topic_partition=self._topic_partition,
                topic_id=topic_id,
                config=self._config,
                content=replace(
                    (yield from self._content(segments)), may_have_gaps=self._may_have_gaps
                ),
                producer_limits=self._producer_limits,
            )
        # All replicas together have more segments than the process may have open files.
        log.segments.close()
        return LoadedLog(
            log=log,
            scanned_bytes=self._scanned_bytes,
            truncated_bytes=self._truncated_bytes,
            was_future=self._was_future,
        )

    def _content(self, segments: list[LogSegment]) -> Steps[LogContent]:
        if not segments:
            start = self._log_start_offset
            return _create_empty(self._vfs, self._directory, self._config, start)
        known_start = self._start_on_disk()
        needs_epochs = not self._has_epochs and self._recovery_point > segments[0].base_offset
        end = None
        if self._was_clean and not needs_epochs:
            end = yield from self._clean_end(segments)
        if end is None:
            scan_from = 0 if needs_epochs else self._recovery_point
            end = yield from self._recover(segments, scan_from)
        oldest, start, damages = segments[0], self._log_start_offset, tuple[Damage, ...]()
        if known_start is not None and known_start < oldest.base_offset:
            start = known_start
            damages = (Damage(start, oldest.base_offset, 0),)
        elif start < oldest.base_offset:
            start = oldest.base_offset
        if end < start:
            return self._start_over(segments, start)
        epochs = truncate_epochs_before(truncate_epochs_from(self._epochs, end), start)
        producers = self._producers
        if producers is None:
            producers = yield from self._snapshots.load(segments, end, self._producer_limits)
        return LogContent(
            segments=segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=max(start, min(self._recovery_point, end)),
            epochs=epochs,
            epochs_on_disk=self._epochs_on_disk,
            damages=damages,
            producers=producers.state,
            replayed_bytes=producers.replayed_bytes,
            is_snapshot_durable=self._is_saved(producers, end),
            snapshot_offsets=self._snapshots.offsets,
        )

    def _is_saved(self, producers: LoadedProducers, end: int) -> bool:
        """Return whether ``producers`` come from a snapshot at ``end`` after a clean stop."""
        is_read = producers.is_from_snapshot and producers.replayed_bytes == 0
        return self._producers is None and is_read and self._snapshots.offsets[-1:] == [end]

    def _read_topic_id(self) -> TopicId:
        path = f"{self._directory}/{PARTITION_METADATA}"
        data = self._vfs.read_if_exists(path)
        if data is None:
            raise CorruptCheckpointError(f"{path} is missing")
        return parse_partition_metadata(bytes(data).decode(errors="replace"), path)

    def _read_epochs(self) -> bool:
        path = f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}"
        data = self._vfs.read_if_exists(path)
        if data is None:
            return False
        try:
            entries = parse_leader_epochs(bytes(data).decode(errors="replace"), path)
        except CorruptCheckpointError:
            return False
        for epoch, start_offset in entries:
            self._epochs = assign_epoch(self._epochs, epoch, start_offset)
        self._epochs_on_disk = tuple(EpochEntry(*entry) for entry in entries)
        return self._epochs == self._epochs_on_disk

    def _start_on_disk(self) -> int | None:
        """Return the log start offset or a lower one, from the files; None if no file has it.

        A clean stop writes the checkpoint of log starts. The first leader epoch starts at or below
        the log start: retention and truncation write the epochs before they remove files
        permanently (:meth:`UnifiedLog.delete_old_segments`).
        """
        if self._has_epochs and self._epochs_on_disk:
            return max(self._log_start_offset, self._epochs_on_disk[0].start_offset)
        return self._log_start_offset if self._is_start_known else None

    def _find_segments(self) -> Steps[list[LogSegment]]:
        """Return the segments of the log files.

        Remove leftovers, and indexes without a log file.
        """
        entries = self._vfs.list_dir(self._directory)
        names = [entry.name for entry in entries]
        if (yield from finish_swaps(self._vfs, self._directory, names)):
            entries = self._vfs.list_dir(self._directory)
        logs: dict[int, int] = {}
        indexes: list[tuple[int, str]] = []
        aborting: set[int] = set()
        snapshots: list[int] = []
        leftovers: list[str] = []
        for entry in entries:
            if entry.name.endswith(LEFTOVER_SUFFIXES):
                leftovers.append(entry.name)
                continue
            self._was_future |= entry.name == FUTURE_CHECKPOINT
            self._may_have_gaps |= entry.name == GAPS_MARK
            parsed = parse_offset_file(entry.name)
            if parsed is None:
                continue
            if parsed[1] == LOG_SUFFIX:
                yield from self._measure(entry, parsed[0], logs)
            elif parsed[1] == SNAPSHOT_SUFFIX:
                snapshots.append(parsed[0])
            elif parsed[1] in INDEX_SUFFIXES:
                indexes.append((parsed[0], entry.name))
                if parsed[1] == TRANSACTION_INDEX_SUFFIX:
                    aborting.add(parsed[0])
        self._snapshots = ProducerSnapshots(self._vfs, lambda: self._directory, snapshots)
        yield from self._take_back(logs, leftovers)
        useless = [name for base_offset, name in indexes if base_offset not in logs]
        for name in (*leftovers, *useless):
            yield from self._remove(f"{self._directory}/{name}")
        found = [
            LogSegment.on_disk(
                self._vfs,
                self._directory,
                base_offset,
                size_bytes,
                self._config,
                has_transaction_index=base_offset in aborting,
            )
            for base_offset, size_bytes in sorted(logs.items())
        ]
        for segment in found:
            segment.may_have_gaps = self._may_have_gaps
        return found

    def _measure(self, entry: DirEntry, base_offset: int, logs: dict[int, int]) -> Steps[None]:
        """Note the size of a log file. The listing omits sizes: it would be one long operation."""
        entry.require_no_link(self._directory)
        extent = self._vfs.extent_if_exists(f"{self._directory}/{entry.name}")
        yield STAT_BYTES
        if extent is not None:
            logs[base_offset] = extent.size_bytes

    def _remove(self, path: str) -> Steps[None]:
        while remove_part(self._vfs, path):
            yield STEP_BYTES
        yield SEEK_BYTES

    def _take_back(self, logs: dict[int, int], leftovers: Sequence[str]) -> Steps[None]:
        """Undo an interrupted retirement of the oldest segments, and add them to ``logs``.

        Retention renames segments first and writes the new log start afterwards. So after a kill
        between the two, the renamed files still belong to the log. A segment that does not end at
        the start of the next one is not renamed, because the records between them are lost. So a
        killed start leaves no log with a gap.

        :param logs: sizes of the log files by base offset.
        """
        start, oldest = self._start_on_disk(), min(logs, default=0)
        if start is None or start >= oldest:
            return
        retired = {
            parsed[0]
            for name in leftovers
            if (parsed := parse_offset_file(name.removesuffix(EXPIRED_SUFFIX))) is not None
            and parsed[1] == LOG_SUFFIX
        }
        for base_offset in sorted((one for one in retired if one < oldest), reverse=True):
            segment = self._retired(base_offset)
            end = yield from segment.sound_end(suffix=EXPIRED_SUFFIX)
            if end != oldest:
                break
            take_back(self._vfs, self._directory, base_offset)
            logs[base_offset], oldest = segment.size_bytes, base_offset
            if base_offset <= start:
                break

    def _retired(self, base_offset: int) -> LogSegment:
        path = f"{self._directory}/{offset_file_name(base_offset, LOG_SUFFIX)}{EXPIRED_SUFFIX}"
        extent = self._vfs.extent_if_exists(path)
        size_bytes = 0 if extent is None else extent.size_bytes
        segment = LogSegment.on_disk(
            self._vfs, self._directory, base_offset, size_bytes, self._config
        )
        segment.may_have_gaps = self._may_have_gaps
        return segment

    def _clean_end(self, segments: Sequence[LogSegment]) -> Steps[int | None]:
        """Return the log end offset after a clean stop; None if the last batch does not end there.

        The checkpoint has no checksum, and a segment or its end may be lost. If the check fails,
        the log is recovered and may end before its recovery point. The replica then leaves the
        in-sync set (broker/replicas/doubtful_copies.py).
        """
        active, end = segments[-1], self._recovery_point
        if active.size_bytes == 0:
            return end if end == active.base_offset else None
        found = yield from active.sound_end()
        return end if found == end else None

    def _recover(self, segments: list[LogSegment], scan_from: int) -> Steps[int]:
        """Scan from the segment that holds ``scan_from``, remove unsound data, and return the log
        end.
        """
        bases = [segment.base_offset for segment in segments]
        at = max(0, bisect_right(bases, scan_from) - 1)
        # Later snapshots may contain records that were truncated.
        self._snapshots.drop_outside(0, self._recovery_point)
        self._epochs = truncate_epochs_from(self._epochs, bases[at])
        end, limits = bases[at], self._producer_limits
        known = yield from self._snapshots.load(segments, end, limits)
        producers = ProducerRecovery(self._snapshots, known, end, limits)
        while at < len(segments):
            segment, on_disk = segments[at], segments[at].size_bytes
            if segment.base_offset != end:
                break  # Offsets before this segment are lost, so it is not reachable.
            # After a failed fsync the page cache may differ from the disk, so read from the disk.
            segment.open().forget_cached(0, on_disk)
            end = yield from self._scan(segment, producers)
            self._scanned_bytes += on_disk
            at += 1
            if segment.size_bytes < on_disk:
                self._truncated_bytes += on_disk - segment.size_bytes
                segment.truncate(segment.size_bytes, end)
                break
        for unreachable in reversed(segments[at:]):
            self._truncated_bytes += unreachable.size_bytes
            yield from self._remove(unreachable.path)
            unreachable.remove()
        del segments[at:]
        self._producers = producers.loaded()
        return end

    def _scan(self, segment: LogSegment, producers: ProducerRecovery) -> Steps[int]:
        """Read all of ``segment``, including its producers and leader epochs.

        Return its end offset.
        """

        def take_run(run: SoundRun) -> None:
            producers.take_run(run)
            for epoch, start_offset in run.scan.epochs:
                self._epochs = assign_epoch(self._epochs, epoch, start_offset)

        scanned = yield from segment.scan_steps(
            check_crc_of_each=True,
            least_epoch=self._epochs[-1].epoch if self._epochs else BELOW_EPOCHS,
            on_run=take_run,
        )
        segment.take_transactions(producers.take_transactions())
        return scanned.next_offset

    def _start_over(self, segments: Sequence[LogSegment], start: int) -> LogContent:
        """Return the content of an empty log at ``start``.

        The oldest file is reused: no space is needed.
        """
        for segment in reversed(segments[1:]):
            segment.remove()
        segments[0].truncate(0, segments[0].base_offset)
        fresh = segments[0].recreate_empty(start)
        fresh.truncate_torn_tail()
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self._directory)
        return _content_of_empty(fresh, epochs_on_disk=None)


def _close_files(segments: Sequence[LogSegment]) -> None:
    for segment in segments:
        segment.close()


def _create_empty(vfs: Vfs, directory: str, config: TopicConfig, start_offset: int) -> LogContent:
    segment = LogSegment.on_disk(vfs, directory, start_offset, 0, config)
    segment.create()
    return _content_of_empty(segment, epochs_on_disk=())


def _content_of_empty(segment: LogSegment, *, epochs_on_disk: EpochEntries | None) -> LogContent:
    return LogContent(
        segments=[segment],
        log_start_offset=segment.base_offset,
        log_end_offset=segment.base_offset,
        recovery_point=segment.base_offset,
        epochs=(),
        epochs_on_disk=epochs_on_disk,
        producers=ProducerState(),
    )
