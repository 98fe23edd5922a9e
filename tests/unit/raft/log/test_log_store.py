"""``RaftLogStore``: restarts, torn tails, damage, snapshots, crashes, and failing disks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from errno import ENOSPC

import pytest

from kraftjbod.core.errors import CorruptRecordError, StartupError
from kraftjbod.raft.log.log_store import RaftLogStore, StoredLog
from kraftjbod.raft.log.snapshot_files import Snapshot
from kraftjbod.raft.machine.messages import Entry, HardState, TermStart, node
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind, kind_of_failure
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.vfs_fault import WRITING_KINDS, Fault, FaultVfs

ROOT = "/meta"
DIRECTORY = "/meta/__cluster_metadata-0"
FIRST_LOG = f"{DIRECTORY}/{0:020d}.log"


def _vfs() -> MemVfs:
    vfs = MemVfs()
    vfs.make_dirs(ROOT)
    vfs.sync_dir("/")
    return vfs


def _store(vfs: Vfs, *, segment_bytes: int = 400, retained: int = 0) -> RaftLogStore:
    return RaftLogStore(
        vfs=vfs, directory=DIRECTORY, segment_bytes=segment_bytes, retained_entries=retained
    )


def _entry(offset: int) -> Entry:
    return Entry(offset, 1, f"entry {offset}".encode() * (offset % 3 + 1))


def _entries(begin: int, end: int) -> list[Entry]:
    return [_entry(offset) for offset in range(begin, end)]


def _opened(vfs: Vfs, **options: int) -> tuple[RaftLogStore, StoredLog]:
    store = _store(vfs, **options)
    return store, store.open()


def _state_up_to(offset: int) -> bytes:
    return f"the state after {offset} ".encode() * 5


def _snapshot(store: RaftLogStore, last_offset: int, in_use: Sequence[int] = ()) -> None:
    payload = _state_up_to(last_offset)
    part = store.begin_snapshot(last_offset, 1)
    part.append_piece(payload[:7])
    part.append_piece(payload[7:])
    assert store.install_snapshot(part.finish(), in_use=in_use) == store.start_offset


def _payload(store: RaftLogStore, snapshot: Snapshot | None) -> bytes:
    assert snapshot is not None
    found, position = b"", 0
    while position >= 0:
        piece = store.read_snapshot(snapshot.last_offset, position, 10)
        assert piece is not None
        found, position = found + piece[0], piece[1]
    return found


def _filled(vfs: Vfs, count: int, **options: int) -> RaftLogStore:
    store, _ = _opened(vfs, **options)
    store.write_hard_state(HardState(term=1, voted_for=node(9)))
    for offset in range(0, count, 3):
        store.append_entries(_entries(offset, min(offset + 3, count)), 17)
    return store


def test_log_store_of_a_new_log_is_empty() -> None:
    _, stored = _opened(_vfs())
    assert stored == StoredLog(
        hard_state=HardState(),
        snapshot=None,
        entries=(),
        last_offset=-1,
        committed_offset=-1,
        terms=(),
        warnings=(),
    )


def test_log_store_returns_appended_entries_after_a_restart() -> None:
    vfs = _vfs()
    _filled(vfs, 40)
    assert len(vfs.list_dir(DIRECTORY)) > 3, "several segments"
    store, stored = _opened(vfs)
    assert stored.entries == tuple(_entries(0, 40))
    assert stored.hard_state == HardState(term=1, voted_for=node(9))
    assert not stored.warnings
    store.append_entries([_entry(40)], 17)
    assert _opened(vfs)[1].last_offset == 40


def test_log_store_committed_bound_survives_a_crash_a_vote_a_stop_and_a_snapshot() -> None:
    vfs = _vfs()
    store = _filled(vfs, 3)
    store.append_entries([_entry(3)], 17, committed_offset=2)
    assert _opened(vfs)[1].committed_offset == 2, "a crash leaves what the last append said"
    store.write_hard_state(HardState(term=2), committed_offset=3)
    assert _opened(vfs)[1].committed_offset == 3
    store.append_entries([_entry(4)], 17, committed_offset=3)
    store.close(committed_offset=4)
    assert _opened(vfs)[1].committed_offset == 4
    store, _ = _opened(vfs)
    store.append_entries([Entry(5, 2, b"e")], 17)
    _snapshot(store, 5)
    assert _opened(vfs)[1].committed_offset == 5


def test_log_store_terms_that_a_snapshot_covers_are_known_after_a_restart() -> None:
    vfs = _vfs()
    store = _filled(vfs, 3)
    store.write_hard_state(HardState(term=2))
    store.append_entries([Entry(3, 2, b"d"), Entry(4, 2, b"e")], 17)
    part = store.begin_snapshot(4, 2)
    part.append_piece(b"state")
    store.install_snapshot(part.finish())
    assert _opened(vfs)[1].terms == (TermStart(0, 1), TermStart(3, 2))


def test_log_store_read_continues_over_segments() -> None:
    store = _filled(_vfs(), 40)
    for max_bytes in (1, 200, 10_000):
        read: list[Entry] = []
        while found := store.read(len(read), max_bytes):
            read += found
        assert read == _entries(0, 40)
    assert store.read(40, 100) == []


@pytest.mark.parametrize("missing", [1, 30, 61, 70])
def test_log_store_truncates_a_torn_tail(missing: int) -> None:
    vfs = _vfs()
    _filled(vfs, 4, segment_bytes=10_000)
    file = vfs.open(FIRST_LOG, OpenMode.READ_WRITE)
    file.truncate(file.size() - missing)
    store, stored = _opened(vfs, segment_bytes=10_000)
    assert stored.entries == tuple(_entries(0, 3))
    assert "unfinished write" in stored.warnings[0]
    store.append_entries([_entry(3)], 17)
    assert _opened(vfs)[1].entries == tuple(_entries(0, 4))


def test_failed_sync_of_truncated_torn_end_counts_as_failed_flush() -> None:
    """As a failed load, ENOSPC would only make the directory SATURATED, and a retry would pass."""
    vfs = _vfs()
    _filled(vfs, 4, segment_bytes=10_000)
    file = vfs.open(FIRST_LOG, OpenMode.READ_WRITE)
    file.truncate(file.size() - 1)
    faulty = FaultVfs(vfs)
    after_truncation = faulty.inject(Fault(errno=ENOSPC, kinds=frozenset({"sync"}), nth=2))
    with pytest.raises(OSError, match="No space left") as failed:
        _opened(faulty, segment_bytes=10_000)
    assert after_truncation.hits == 1
    assert kind_of_failure(failed.value, OpKind.LOAD) is OpKind.FLUSH


def _damage(vfs: MemVfs, path: str, at: int) -> None:
    file = vfs.open(path, OpenMode.READ_WRITE)
    byte = file.read_at(at, 1)[0]
    file.write_at(at, [bytes([byte ^ 1])])
    file.sync()


@pytest.mark.parametrize("at", [3, 9, 40, 75])
def test_log_store_damage_before_a_later_append_stops_the_start(at: int) -> None:
    vfs = _vfs()
    _filled(vfs, 6, segment_bytes=10_000)
    _damage(vfs, FIRST_LOG, at)
    with pytest.raises(StartupError, match=f"{FIRST_LOG} is damaged at byte 0, entry 0"):
        _opened(vfs)


def test_log_store_damage_in_the_last_append_counts_as_a_torn_tail() -> None:
    vfs = _vfs()
    _filled(vfs, 3, segment_bytes=10_000)
    _damage(vfs, FIRST_LOG, 75)
    _, stored = _opened(vfs)
    assert stored.entries == ()
    assert stored.warnings


def test_log_store_damage_in_an_older_segment_stops_the_start() -> None:
    vfs = _vfs()
    _filled(vfs, 40)
    file = vfs.open(FIRST_LOG, OpenMode.READ_WRITE)
    file.truncate(file.size() - 1)
    with pytest.raises(StartupError, match="is damaged"):
        _opened(vfs)


def test_log_store_missing_segment_stops_the_start() -> None:
    vfs = _vfs()
    _filled(vfs, 40)
    logs = [item.name for item in vfs.list_dir(DIRECTORY) if item.name.endswith(".log")]
    vfs.unlink_if_exists(f"{DIRECTORY}/{logs[1]}")
    with pytest.raises(StartupError, match="does not continue the log"):
        _opened(vfs)
    vfs.unlink_if_exists(FIRST_LOG)
    for name in logs[1:3]:
        vfs.unlink_if_exists(f"{DIRECTORY}/{name}")
    with pytest.raises(StartupError, match="there is no snapshot"):
        _opened(vfs)


@pytest.mark.parametrize("text", [b"", b"{", b'{"leaderEpoch": 1}', b"[]"])
def test_log_store_damaged_quorum_state_stops_the_start(text: bytes) -> None:
    vfs = _vfs()
    _filled(vfs, 1)
    file = vfs.open(f"{DIRECTORY}/quorum-state", OpenMode.READ_WRITE)
    file.truncate(0)
    file.write_at(0, [text])
    with pytest.raises(StartupError, match="quorum-state is damaged"):
        _opened(vfs)


def test_log_store_log_of_a_later_term_than_the_vote_stops_the_start() -> None:
    vfs = _vfs()
    _filled(vfs, 1)
    vfs.unlink_if_exists(f"{DIRECTORY}/quorum-state")
    with pytest.raises(StartupError, match="says term 0, but the log has entries of term 1"):
        _opened(vfs)


def test_log_store_open_returns_a_snapshot_and_the_entries_after_it() -> None:
    vfs = _vfs()
    store = _filled(vfs, 10)
    _snapshot(store, 7)
    again, stored = _opened(vfs)
    assert _payload(again, stored.snapshot) == _state_up_to(7)
    assert stored.entries == tuple(_entries(8, 10))
    assert stored.last_offset == 9


def test_log_store_read_snapshot_returns_pieces_until_it_is_removed() -> None:
    store = _filled(_vfs(), 10)
    _snapshot(store, 7)
    payload, position = b"", 0
    while position >= 0:
        found = store.read_snapshot(7, position, 16)
        assert found is not None
        payload += found[0]
        position = found[1]
    assert payload == _state_up_to(7)
    for last_offset in (8, 9):
        _snapshot(store, last_offset)
    assert store.read_snapshot(7, 0, 16) is None
    assert store.newest_snapshot is not None
    assert store.newest_snapshot.last_offset == 9


def test_log_store_snapshot_in_use_stays_with_the_entries_after_it() -> None:
    """The receiver of the snapshot requests these entries next."""
    vfs = _vfs()
    store = _filled(vfs, 30)
    for last_offset in (5, 10, 20):
        _snapshot(store, last_offset, in_use=[5])
    assert _payload(store, store.newest_snapshot) == _state_up_to(20)
    assert store.read_snapshot(5, 0, 16) is not None
    assert store.start_offset <= 6
    _snapshot(store, 29)
    assert store.read_snapshot(5, 0, 16) is None
    assert 6 < store.start_offset <= 21
    assert _opened(vfs)[1].last_offset == 29


def test_log_store_snapshot_found_damaged_in_a_read_is_replaced() -> None:
    vfs = _vfs()
    store = _filled(vfs, 10)
    _snapshot(store, 5)
    _snapshot(store, 7)
    path = f"{DIRECTORY}/{8:020d}-{1:010d}.checkpoint"
    _damage(vfs, path, 40)
    with pytest.raises(CorruptRecordError, match="is damaged"):
        store.read_snapshot(7, 0, 16)
    assert store.read_snapshot(7, 0, 16) is None
    assert store.newest_snapshot is not None
    assert store.newest_snapshot.last_offset == 5
    _snapshot(store, 7)
    assert _payload(store, store.newest_snapshot) == _state_up_to(7), "under the same name"
    _damage(vfs, path, 40)
    with pytest.raises(CorruptRecordError):
        store.read_snapshot(7, 0, 16)
    _snapshot(store, 9)
    assert not vfs.exists(path)
    assert _payload(*_opened_with_snapshot(vfs)) == _state_up_to(9)


def _opened_with_snapshot(vfs: Vfs) -> tuple[RaftLogStore, Snapshot | None]:
    store, stored = _opened(vfs)
    return store, stored.snapshot


def test_log_store_removes_entries_before_the_older_snapshot_only() -> None:
    vfs = _vfs()
    store = _filled(vfs, 30)
    _snapshot(store, 14)
    assert store.start_offset == 0
    _snapshot(store, 29)
    assert 0 < store.start_offset <= 15
    assert _opened(vfs)[1].last_offset == 29


def test_log_store_keeps_retained_entries_for_lagging_followers() -> None:
    store = _filled(_vfs(), 30, retained=25)
    _snapshot(store, 20)
    _snapshot(store, 29)
    assert store.start_offset <= 5


@pytest.mark.parametrize("snapshots", [1, 2])
def test_log_store_open_skips_a_damaged_snapshot(snapshots: int) -> None:
    vfs = _vfs()
    store = _filled(vfs, 30)
    for last_offset in (14, 29)[-snapshots:]:
        _snapshot(store, last_offset)
    _damage(vfs, f"{DIRECTORY}/{30:020d}-{1:010d}.checkpoint", 40)
    _, stored = _opened(vfs)
    assert "is damaged and was passed over" in stored.warnings[0]
    covered = -1 if stored.snapshot is None else stored.snapshot.last_offset
    assert covered == (-1 if snapshots == 1 else 14)
    assert stored.entries == tuple(_entries(covered + 1, 30))


def test_log_store_without_sound_snapshot_and_log_start_stops_the_start() -> None:
    vfs = _vfs()
    store = _filled(vfs, 30)
    for last_offset in (14, 29):
        _snapshot(store, last_offset)
        _damage(vfs, f"{DIRECTORY}/{last_offset + 1:020d}-{1:010d}.checkpoint", 40)
    with pytest.raises(StartupError, match=r"passed over.*restore the metadata directory"):
        _opened(vfs)


def test_log_store_continues_after_a_snapshot_without_a_log() -> None:
    vfs = _vfs()
    store = _filled(vfs, 10)
    _snapshot(store, 9)
    for item in vfs.list_dir(DIRECTORY):
        if item.name.endswith(".log"):
            vfs.unlink_if_exists(f"{DIRECTORY}/{item.name}")
    store, stored = _opened(vfs)
    assert stored.last_offset == 9
    store.append_entries([_entry(10)], 17)
    assert _opened(vfs)[1].entries == (_entry(10),)


def test_log_store_open_removes_an_unfinished_snapshot() -> None:
    vfs = _vfs()
    store = _filled(vfs, 10)
    part = store.begin_snapshot(5, 1)
    part.append_piece(b"abc")
    assert any(item.name.endswith(".part") for item in vfs.list_dir(DIRECTORY))
    _, stored = _opened(vfs)
    assert stored.snapshot is None
    assert not any(item.name.endswith(".part") for item in vfs.list_dir(DIRECTORY))


# --- workloads with faults -----------------------------------------------------------------------


class _Workload:
    """Appends, elections and snapshots, with a record of the acknowledged ones."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self.begun = 0
        self.acknowledged = 0
        self.term_acknowledged = 0

    def steps(self) -> Iterator[None]:
        store, _ = _opened(self._vfs)
        yield
        store.write_hard_state(HardState(term=1, voted_for=node(1)))
        self.term_acknowledged = 1
        yield
        for step in range(12):
            entries = _entries(self.begun, self.begun + 1 + step % 3)
            self.begun += len(entries)
            store.append_entries(entries, 17)
            self.acknowledged = self.begun
            yield
            if step % 4 == 3:
                _snapshot(store, self.acknowledged - 2)
                yield

    def check(self, vfs: Vfs) -> None:
        """Check that all acknowledged entries are present, and none that was never appended."""
        store, stored = _opened(vfs)
        assert stored.hard_state.term >= self.term_acknowledged
        assert self.acknowledged - 1 <= stored.last_offset < max(self.begun, 1)
        covered = -1
        if stored.snapshot is not None:
            covered = stored.snapshot.last_offset
            assert _payload(store, stored.snapshot) == _state_up_to(covered)
        assert stored.entries == tuple(_entries(covered + 1, stored.last_offset + 1))
        store.append_entries([_entry(stored.last_offset + 1)], 17)


@pytest.mark.parametrize("effect", [DiskFault.EIO, DiskFault.SHORT_WRITE])
def test_log_store_disk_error_at_each_operation_loses_no_acknowledged_entry(
    effect: DiskFault,
) -> None:
    for nth in range(1, 1000):
        inner = _vfs()
        faulty = FaultVfs(inner)
        fault = faulty.inject(Fault(effect=effect, kinds=WRITING_KINDS, nth=nth))
        workload = _Workload(faulty)
        try:
            for _ in workload.steps():
                pass
        except OSError:
            assert fault.hits
        workload.check(inner)
        if not fault.hits:
            return
    raise AssertionError("the workload never ran through")


@each_case("seed", range(8))
def test_log_store_power_cut_at_each_operation_loses_no_acknowledged_entry(seed: int) -> None:
    rng = random.Random(seed)
    for nth in range(1, 1000):
        inner = _vfs()
        faulty = FaultVfs(inner)
        fault = faulty.inject(Fault(kinds=WRITING_KINDS, nth=nth))
        workload = _Workload(faulty)
        try:
            for _ in workload.steps():
                pass
        except OSError:
            assert fault.hits
        workload.check(inner.crash_clone(rng.randrange(2**32)))
        if not fault.hits:
            return
    raise AssertionError("the workload never ran through")


@pytest.mark.parametrize("is_lost", [False, True])
@each_case("seed", range(8))
def test_log_store_entries_reported_after_a_restart_survive_a_power_cut(
    seed: int, *, is_lost: bool
) -> None:
    """The process died before the fsync, or after a failed fsync that marked the pages as clean."""
    inner = _vfs()
    faulty = FaultVfs(inner)
    store, _ = _opened(faulty)
    store.write_hard_state(HardState(term=1))
    store.append_entries(_entries(0, 3), 17)
    faulty.inject(Fault(kinds=frozenset({"sync"})))
    with pytest.raises(OSError, match="Input/output"):
        store.append_entries(_entries(3, 9), 17)
    if is_lost:
        inner.open(FIRST_LOG, OpenMode.READ).fail_writeback(random.Random(seed))
    _, reported = _opened(inner)
    assert reported.last_offset >= 2
    _, left = _opened(inner.crash_clone(seed))
    assert left.entries == reported.entries


def test_log_store_vote_reported_after_a_restart_survives_a_power_cut() -> None:
    """The process was killed between the rename of ``quorum-state`` and the sync of its name."""
    inner = _vfs()
    faulty = FaultVfs(inner)
    store, _ = _opened(faulty)
    faulty.inject(Fault(kinds=frozenset({"sync_dir"})))
    with pytest.raises(OSError, match="Input/output"):
        store.write_hard_state(HardState(term=1, voted_for=node(9)))
    _, reported = _opened(inner)
    assert reported.hard_state.voted_for == node(9)
    for seed in range(20):
        assert _opened(inner.crash_clone(seed))[1].hard_state == reported.hard_state


class _Follower:
    """A log whose tail is truncated repeatedly, and is twice replaced by a snapshot."""

    def __init__(self, vfs: Vfs, seed: int) -> None:
        self._vfs = vfs
        self._rng = random.Random(seed)
        #: The offset of the snapshot and the entries after it: acknowledged, and as requested.
        self.certain: tuple[int, list[Entry]] = (-1, [])
        self.wanted = self.certain
        #: The first entry that may be missing or replaced.
        self.cut = 0

    def steps(self) -> Iterator[None]:
        store, _ = _opened(self._vfs, segment_bytes=200)
        for term in range(1, 25):
            # The end of the log is noted with it, and must not be trusted after a truncation.
            store.write_hard_state(HardState(term=99 + term))
            covered, old = self.certain
            if term in (12, 20):
                last = max(covered + len(old) - (1 if term == 12 else 3), covered + 1)
                self.cut, self.wanted = covered + 1, (last, [])
                part = store.begin_snapshot(last, 90)
                part.append_piece(_state_up_to(last))
                store.install_snapshot(part.finish(), replaces_log=True)
            else:
                kept = len(old) if term % 4 else self._rng.randint(0, len(old))
                self.cut = covered + 1 + kept
                count = self._rng.randint(1, 6)
                new = [Entry(self.cut + i, term, b"x" * 40) for i in range(count)]
                self.wanted = (covered, old[: self.cut - covered - 1] + new)
                store.append_entries(new, 17)
            self.certain = self.wanted
            yield

    def check(self, vfs: Vfs) -> None:
        """Check for the old or the new log, up to some offset at or after the truncation."""
        _, stored = _opened(vfs, segment_bytes=200)
        covered = -1 if stored.snapshot is None else stored.snapshot.last_offset
        found = list(stored.entries)
        fitting = [
            entries[: len(found)] == found and covered == base
            for base, entries in (self.certain, self.wanted)
        ]
        assert any(fitting), (found, self.certain, self.wanted)
        if self.certain == self.wanted:
            assert found == self.certain[1]
        assert stored.last_offset >= self.cut - 1 or covered == self.wanted[0]


@each_case("seed", range(6))
def test_log_store_power_cut_during_a_truncation_leaves_a_prefix_of_the_old_or_new_log(
    seed: int,
) -> None:
    rng = random.Random(seed)
    for nth in range(1, 1000):
        inner = _vfs()
        faulty = FaultVfs(inner)
        fault = faulty.inject(Fault(kinds=WRITING_KINDS, nth=nth))
        workload = _Follower(faulty, seed)
        try:
            for _ in workload.steps():
                pass
        except OSError:
            assert fault.hits
        workload.check(inner.crash_clone(rng.randrange(2**32)))
        if not fault.hits:
            return
    raise AssertionError("the workload never ran through")


def test_log_store_append_of_an_entry_that_a_snapshot_covers_is_an_assertion_error() -> None:
    store = _filled(_vfs(), 10)
    _snapshot(store, 5)
    with pytest.raises(AssertionError):
        store.append_entries([Entry(5, 2, b"instead")], 17)
    store.append_entries([Entry(6, 2, b"instead")], 17)
    assert store.read(6, 1000) == [Entry(6, 2, b"instead")]
