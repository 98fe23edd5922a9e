"""``UnifiedLog`` against a list as its model, and special cases."""

from __future__ import annotations

import random
from errno import ENOSPC
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kraftjbod.core.errors import (
    CorruptRecordError,
    ErrorCode,
    OffsetOutOfRangeError,
    OperatingError,
)
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_loader import LogLoader, create_log
from kraftjbod.storage.log.log_values import AppendResult, FoundTimestamp
from kraftjbod.storage.log.time_search import LogTimeSearch, MaxTimestampSearch
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.segments.segment_cache import CacheLimits, SegmentCache
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, close_log, headers_of, read_by_index
from tests.faults.vfs_fault import Fault, FaultVfs

NO_LIMIT = 2**62
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, retention_ms=10_000)


def make(config: TopicConfig = CONFIG, vfs: Vfs | None = None) -> UnifiedLog:
    vfs = vfs or MemVfs()
    vfs.make_dirs("/d1")
    return create_log(vfs, "/d1", TP, TOPIC_ID, config)


def append(
    log: UnifiedLog, records: int = 1, *, epoch: int = 0, now_ms: int = 1_000_000, **kw: Any
) -> AppendResult:
    data = batch(records, timestamp=now_ms, **kw)
    return log.append_as_leader(data, headers_of(data), epoch, now_ms)


def read_all(log: UnifiedLog, max_bytes: int = 700) -> list[tuple[int, int]]:
    """Return (base offset, last offset) of each batch, by as many reads as needed."""
    found, offset = [], log.view().log_start_offset
    while offset < log.view().log_end_offset:
        headers = headers_of(read_by_index(log, offset, max_bytes, NO_LIMIT))
        assert headers, offset
        found += [(h.base_offset, h.last_offset) for h in headers]
        offset = headers[-1].next_offset
    return found


def reload(log: UnifiedLog, vfs: Vfs, *, clean: bool) -> UnifiedLog:
    point = log.view().recovery_point
    if clean:
        close_log(log, vfs)
        point = log.view().recovery_point
    loaded = LogLoader(
        vfs=vfs,
        directory=log.directory,
        topic_partition=TP,
        config=log.config,
        was_clean=clean,
        recovery_point=point,
        log_start_offset=log.view().log_start_offset,
    ).load()
    assert loaded.truncated_bytes == 0
    return loaded.log


class LogMachine(RuleBasedStateMachine):
    """The model is the list of the expected batches, as (base offset, last offset, epoch)."""

    @initialize()
    def begin(self) -> None:
        self.vfs = MemVfs()
        self.cache = SegmentCache(CacheLimits(index_bytes=0, open_segments=0))
        self.log = make(vfs=self.vfs)
        self.log.segments.join(self.cache)
        self.model: list[tuple[int, int, int]] = []
        self.start = self.end = 0
        self.epoch = 0
        self.now_ms = 1_000_000

    @rule(records=st.integers(1, 5), size=st.integers(0, 600), newer=st.booleans())
    def append(self, records: int, size: int, newer: bool) -> None:
        self.epoch += newer
        self.now_ms += 100
        data = batch(records, timestamp=self.now_ms, body=bytes(size))
        result = self.log.append_as_leader(data, headers_of(data), self.epoch, self.now_ms)
        assert result.base_offset == self.end
        self.model.append((self.end, self.end + records - 1, self.epoch))
        self.end += records

    @rule()
    def roll(self) -> None:
        if self.log.view().segments[-1].size_bytes:
            self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.view().recovery_point == self.end

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        self.log.truncate_to(offset)
        self.model = [b for b in self.model if b[1] < offset]
        whole = self.model[-1][1] + 1 if self.model else min(self.start, offset)
        self.end = max(whole, min(offset, self.end)) if not self._inside(offset) else whole
        assert self.log.view().log_end_offset == self.end
        self.epoch = max(self.epoch, self.model[-1][2] if self.model else 0)

    def _inside(self, offset: int) -> bool:
        return offset < self.end and (not self.model or self.model[-1][1] + 1 != offset)

    @rule()
    def restart_fully(self) -> None:
        self.log.truncate_fully_and_start_at(self.end + 10)
        self.start = self.end = self.end + 10
        self.model = []

    @rule(later_ms=st.integers(0, 3000))
    def retain(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.log.delete_old_segments(self.now_ms, self.end)
        self.start = self.log.view().log_start_offset
        self.model = [b for b in self.model if b[0] >= self.start]

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.log = reload(self.log, self.vfs, clean=clean)
        self.cache = SegmentCache(CacheLimits(index_bytes=0, open_segments=0))
        self.log.segments.join(self.cache)

    @rule()
    def close_idle_files(self) -> None:
        self.log.detach_files(self.cache.choose_idle())
        self.log.segments.close_detached()

    @rule(data=st.data(), max_bytes=st.integers(0, 3000))
    def read_somewhere(self, data: st.DataObject, max_bytes: int) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        limit = data.draw(st.integers(self.start, self.end))
        got = headers_of(read_by_index(self.log, offset, max_bytes, limit))
        expected = [b for b in self.model if b[1] >= offset and b[1] < limit]
        seen = [(h.base_offset, h.last_offset, h.partition_leader_epoch) for h in got]
        assert seen == expected[: len(seen)]
        assert bool(seen) == bool(expected)

    @invariant()
    def everything_is_there(self) -> None:
        assert read_all(self.log) == [(b[0], b[1]) for b in self.model]
        view = self.log.view()
        assert (view.log_start_offset, view.log_end_offset) == (self.start, self.end)
        assert view.size_bytes == sum(s.size_bytes for s in view.segments)
        starts = [e.start_offset for e in view.epochs]
        assert starts == sorted(set(starts))
        for retired in self.log.segments.take_retired():
            retired.purge()
        shown = self.log.view().segments
        assert self.cache.open_segments == sum(one.file is not None for one in shown)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogMachine = LogMachine.TestCase


def test_append_of_a_duplicate_returns_its_original_offsets() -> None:
    log = make()
    append(log)
    first = append(log, 3, producer=(7, 0, 0))
    append(log, 2, producer=(7, 0, 3))
    again = append(log, 3, producer=(7, 0, 0))
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 1, 3)
    assert not first.duplicate
    assert log.view().log_end_offset == 6


@pytest.mark.parametrize("clean", [True, False])
def test_producer_state_survives_a_restart(clean: bool) -> None:
    vfs = MemVfs()
    log = make(vfs=vfs)
    for i in range(40):
        append(log, 1, producer=(7, 0, i))
    assert len(log.view().segments) > 2
    log = reload(log, vfs, clean=clean)
    assert append(log, 1, producer=(7, 0, 39)).duplicate
    with pytest.raises(OperatingError) as caught:
        append(log, 1, producer=(7, 0, 41))
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not append(log, 1, producer=(7, 0, 40)).duplicate


def test_truncate_restores_an_earlier_producer_state() -> None:
    log = make()
    for i in range(10):
        append(log, 1, producer=(7, 0, i))
    log.truncate_to(4)
    assert not append(log, 1, producer=(7, 0, 4)).duplicate


def test_append_as_follower_keeps_the_leaders_offsets_and_epochs() -> None:
    log = make()
    data = batch(2, base_offset=0, epoch=3) + batch(1, base_offset=2, epoch=4)
    torn = data + batch(1, base_offset=3, epoch=4)[:-1]
    result = log.append_as_follower(torn, 0)
    assert (result.base_offset, result.last_offset) == (0, 2)
    assert [tuple(e) for e in log.view().epochs] == [(3, 0), (4, 2)]
    assert bytes(log.read(0, 1 << 20, NO_LIMIT, True)) == data


def test_append_as_follower_refuses_a_hole_and_a_wrong_crc() -> None:
    log = make()
    with pytest.raises(CorruptRecordError, match="the log ends at 0"):
        log.append_as_follower(batch(base_offset=1), 0)
    spoiled = bytearray(batch())
    spoiled[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        log.append_as_follower(spoiled, 0)
    assert log.view().log_end_offset == 0


def empty_log_at_15() -> tuple[UnifiedLog, FaultVfs]:
    """Create an empty follower log at 15; the leader's first batch has the offsets 10 to 19."""
    vfs = FaultVfs(MemVfs())
    log = make(vfs=vfs)
    log.truncate_fully_and_start_at(15)
    return log, vfs


@pytest.mark.parametrize("clean", [False, True])
def test_append_as_follower_to_an_empty_log_accepts_a_batch_around_its_start(clean: bool) -> None:
    log, vfs = empty_log_at_15()
    log.append_as_follower(batch(10, base_offset=10, epoch=3), 0)
    log.append_as_follower(batch(base_offset=20, epoch=3), 0)
    for reloaded in (log, reload(log, vfs, clean=clean)):
        view = reloaded.view()
        assert (view.log_start_offset, view.log_end_offset) == (15, 21)
        assert [(e.epoch, e.start_offset) for e in view.epochs] == [(3, 15)]
        assert read_all(reloaded) == [(10, 19), (20, 20)]


def test_append_as_follower_accepts_an_early_base_offset_only_in_the_first_batch() -> None:
    log, _ = empty_log_at_15()
    for base_offset, records in ((10, 5), (16, 1)):
        with pytest.raises(CorruptRecordError):
            log.append_as_follower(batch(records, base_offset=base_offset), 0)
    log.append_as_follower(batch(10, base_offset=10), 0)
    with pytest.raises(CorruptRecordError):
        log.append_as_follower(batch(10, base_offset=15), 0)


@pytest.mark.parametrize("restart", [None, False, True])
def test_append_as_follower_before_the_log_start_without_space_changes_nothing(
    restart: bool | None,
) -> None:
    """The segment is renamed before the append, and the log is still empty."""
    log, vfs = empty_log_at_15()
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"}), path="*.log", sticky=False))
    with pytest.raises(OSError):
        log.append_as_follower(batch(10, base_offset=10), 0)
    if restart is not None:
        log = reload(log, vfs, clean=restart)
    assert (log.view().log_start_offset, log.view().log_end_offset) == (15, 15)
    append(log, 2)
    log = reload(log, vfs, clean=False)
    assert read_all(log) == [(15, 16)]


def test_append_with_log_append_time_sets_timestamps_and_crc() -> None:
    log = make(TopicConfig(message_timestamp_type="LogAppendTime"))
    data = batch(2, timestamp=5)
    result = log.append_as_leader(data, headers_of(data), 0, 777)
    assert result.log_append_time_ms == 777
    stored = log.read(0, 1 << 20, NO_LIMIT, True)
    (header,) = headers_of(stored)
    assert header.max_timestamp == 777
    make().append_as_follower(stored, 0)


def test_read_outside_the_log_is_refused() -> None:
    log = make()
    append(log)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(2, 100, NO_LIMIT, True)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(-1, 100, NO_LIMIT, True)
    assert log.read(1, 100, NO_LIMIT, True) == b""


def test_read_returns_a_first_batch_above_the_limit_only_with_min_one() -> None:
    log = make()
    append(log, body=bytes(500))
    assert len(log.read(0, 10, NO_LIMIT, True)) > 500
    assert log.read(0, 10, NO_LIMIT, False) == b""


def test_delete_old_segments_by_size_stays_below_the_high_watermark() -> None:
    log = make(CONFIG.model_copy(update={"retention_bytes": 0, "retention_ms": -1}))
    for _ in range(30):
        append(log)
    bases = [s.base_offset for s in log.view().segments]
    assert log.delete_old_segments(0, bases[1]) == 1
    assert log.view().log_start_offset == bases[1]
    assert [s.base_offset for s in log.segments.take_retired()] == [0]


def test_append_rolls_the_segment_after_segment_ms() -> None:
    log = make(TopicConfig(segment_ms=1000))
    append(log, now_ms=0)
    append(log, now_ms=1000)
    append(log, now_ms=1001)
    assert [s.base_offset for s in log.view().segments] == [0, 2]


def found_by_time(log: UnifiedLog, timestamp: int) -> FoundTimestamp | None:
    search = LogTimeSearch(timestamp)
    while not search.is_over:
        log.search(search)
        if search.unopened_bytes:
            search.open()
    return search.answer


def test_search_finds_each_offset_by_its_timestamp() -> None:
    log = make()
    for i in range(50):
        append(log, 2, now_ms=1000 + 10 * i)
    for i in range(50):
        found = found_by_time(log, 1000 + 10 * i - 5)
        assert found is not None
        assert (found.timestamp, found.offset) == (1000 + 10 * i, 2 * i)
    assert found_by_time(log, 2000) is None
    search = MaxTimestampSearch()
    while not search.is_over:
        log.search(search)
    assert (search.largest, search.base_offset) == (1490, log.segments.active.base_offset)


def test_reload_rebuilds_damaged_index_files() -> None:
    vfs = MemVfs()
    log = make(vfs=vfs)
    for _ in range(30):
        append(log)
    before = read_all(log)
    close_log(log, vfs)
    rng = random.Random(3)
    for entry in vfs.list_dir("/d1/t-0", sized="index"):
        if entry.name.endswith("index"):
            file = vfs.open(f"/d1/t-0/{entry.name}", OpenMode.READ_WRITE)
            file.write_at(0, [rng.randbytes(entry.known_size)])
    log = reload(log, vfs, clean=True)
    assert read_all(log) == before


def test_flushed_with_a_plan_from_before_a_truncation_is_ignored() -> None:
    log = make()
    for _ in range(5):
        append(log)
    plan = log.flush_plan()
    log.truncate_to(2)
    for _ in range(5):
        append(log)
    log.flushed(plan)
    assert log.view().recovery_point == 0


def test_flush_messages_of_1_flushes_each_append() -> None:
    log = make(TopicConfig(flush_messages=1))
    append(log)
    assert log.view().recovery_point == 1


# -- logs with gaps --------------------------------------------------------------------------------


def sent(*bases: int, epoch: int = 0) -> bytes:
    """Return batches of two records each, as a leader sends them."""
    return b"".join(batch(2, base_offset=base, epoch=epoch, body=bytes(60)) for base in bases)


def test_append_as_follower_accepts_a_gap_only_if_the_leader_may_compact() -> None:
    log = make()
    log.append_as_follower(sent(0), 1)
    with pytest.raises(CorruptRecordError, match="the leader sent offset 10, the log ends at 2"):
        log.append_as_follower(sent(10), 1)
    assert not log.view().may_have_gaps
    log.append_as_follower(sent(10, 40), 1, may_have_gaps=True)
    assert log.view().may_have_gaps
    assert read_all(log) == [(0, 1), (10, 11), (40, 41)]
    with pytest.raises(CorruptRecordError, match="the leader sent offset 30"):
        log.append_as_follower(sent(30), 1, may_have_gaps=True)


@pytest.mark.parametrize("clean", [True, False])
def test_gaps_survive_a_restart_and_reads_skip_them(clean: bool) -> None:
    vfs = MemVfs()
    log = make(vfs=vfs)
    bases = [7 * i for i in range(30)]
    for base in bases:
        log.append_as_follower(sent(base), 1, may_have_gaps=True)
    assert len(log.view().segments) > 2
    log = reload(log, vfs, clean=clean)
    assert log.view().may_have_gaps
    assert [first for first, _ in read_all(log)] == bases
    for offset in range(200):
        (first, *_) = headers_of(read_by_index(log, offset, 1, NO_LIMIT))
        assert first.base_offset == min(base for base in bases if base + 1 >= offset)
    assert log.view().damages == ()


def test_reload_truncates_at_a_gap_without_the_mark() -> None:
    vfs = MemVfs()
    log = make(vfs=vfs)
    log.append_as_follower(sent(0, 5, 10), 1, may_have_gaps=True)
    close_log(log, vfs)
    vfs.unlink_if_exists(f"{log.directory}/may-have-gaps")
    loader = LogLoader(
        vfs=vfs, directory=log.directory, topic_partition=TP, config=CONFIG, was_clean=False
    )
    loaded = loader.load()
    assert (loaded.log.view().log_end_offset, loaded.truncated_bytes) == (2, len(sent(5, 10)))


@pytest.mark.parametrize("flip", [(1, 0x40), (7, 0x01), (30, 0x01), (64, 0x80)])
def test_read_in_a_log_with_gaps_detects_damage_except_a_plausible_base_offset(
    flip: tuple[int, int],
) -> None:
    """The base offset has no CRC: a wrong one points out of the segment, or back."""
    vfs = MemVfs()
    log = make(vfs=vfs)
    log.append_as_follower(sent(0, 50), 1, may_have_gaps=True)
    log.append_as_follower(sent(101), 1, may_have_gaps=True)
    log.roll()
    log.append_as_follower(sent(103), 1, may_have_gaps=True)
    at, bit = flip
    file = vfs.open(log.view().segments[0].path, OpenMode.READ_WRITE)
    file.data[len(sent(0)) + at] ^= bit
    log = reload(log, vfs, clean=True)
    if at == 7:
        # A base offset that is one higher looks like a gap; the records are correct.
        assert [h.base_offset for h in headers_of(read_by_index(log, 40, 1, NO_LIMIT))] == [51]
        return
    assert len(read_by_index(log, 40, 1000, NO_LIMIT)) == 0
    assert [(d.offset, d.next_offset) for d in log.view().damages] == [(2, 101)]


def test_truncate_into_a_gap_ends_the_log_after_its_last_batch() -> None:
    vfs = MemVfs()
    log = make(vfs=vfs)
    log.append_as_follower(sent(0, 10, 30), 1, may_have_gaps=True)
    log.truncate_to(20)
    assert log.view().log_end_offset == 12
    log.append_as_follower(sent(25, epoch=1), 1, may_have_gaps=True)
    log.truncate_to(5)
    assert log.view().log_end_offset == 2
    assert read_all(reload(log, vfs, clean=False)) == [(0, 1)]


def test_start_at_raises_the_log_start_and_retention_removes_segments_below_it() -> None:
    """KIP-107 removes whole segments below the new start."""
    log = make()
    for _ in range(9):
        append(log, body=bytes(300), epoch=3)
    log.start_at(4)
    assert log.view().log_start_offset == 4
    assert log.view().epochs[0].start_offset == 4
    with pytest.raises(OffsetOutOfRangeError):
        log.read(3, 1000, NO_LIMIT, True)
    before = len(log.view().segments)
    assert log.delete_old_segments(1_000_000, 9) > 0
    assert len(log.view().segments) < before
    assert (log.view().log_start_offset, log.view().log_end_offset) == (4, 9)
    log.start_at(2)
    assert log.view().log_start_offset == 4


def test_delete_old_segments_without_free_space_empties_the_last_segment() -> None:
    vfs = MemVfs()
    log = make(vfs=vfs)
    for _ in range(9):
        append(log, body=bytes(300), producer=(-1, -1, -1))
    log.start_at(9)
    vfs.capacity_bytes = vfs.capacity_inodes = 0
    with pytest.raises(OSError, match="No space"):
        log.delete_old_segments(1_000_000, 9)
    assert len(log.view().segments) == 1
    assert log.delete_old_segments(1_000_000, 9, without_free_space=True) == 1
    assert (log.view().size_bytes, log.view().log_end_offset) == (0, 9)
    vfs.capacity_bytes = vfs.capacity_inodes = None
    assert append(log).base_offset == 9
    assert read_all(reload(log, vfs, clean=False)) == [(9, 9)]


def test_append_refused_by_a_full_disk_in_its_flush_changes_nothing() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, CONFIG.model_copy(update={"flush_messages": 1}))
    append(log)
    vfs.inject(Fault(errno=ENOSPC, path="*leader-epoch*", sticky=False))
    with pytest.raises(OSError, match="No space"):
        append(log, epoch=2)
    assert log.view().log_end_offset == 1
    assert append(log, epoch=2).base_offset == 1
    assert log.view().recovery_point == 2


def test_append_as_follower_limits_the_offset_span_of_a_segment() -> None:
    """Indexes store offsets in 32 bits; the next fetch brings the rest into another segment."""
    log = make()
    far = batch(2, base_offset=2**31 - 2)
    sent_at_once = batch(2, base_offset=10) + far + batch(1, base_offset=2**31)
    log.append_as_follower(sent_at_once, 1, may_have_gaps=True)
    assert log.view().log_end_offset == 12
    log.append_as_follower(far, 1, may_have_gaps=True)
    assert [segment.base_offset for segment in log.segments.all] == [0, 12]
    with pytest.raises(CorruptRecordError, match="the gap is larger than a segment can hold"):
        log.append_as_follower(batch(1, base_offset=2**33), 1, may_have_gaps=True)
