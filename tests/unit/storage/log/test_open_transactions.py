"""Transactions in a log, its indexes and snapshots, compared with a model by a random walk.

The walk mixes producers, markers, truncations, deletions, retention, flushes, clean and unclean
restarts, damaged indexes, full disks, moves and replication. After each step a simulated reader
with read_committed, which uses the list of aborted transactions as Java's consumer does, must get
the records that the model has as committed. The last stable offset must not pass an open
transaction.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from errno import ENOSPC
from functools import partial
from pathlib import Path

import pytest

from kraftjbod.core.ids import DirectoryId, Uuid
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.control_records import TransactionMarker, build_marker, read_marker
from kraftjbod.protocol.record_batch import batches, read_header
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log import open_transactions
from kraftjbod.storage.log.log_loader import LogLoader, create_log
from kraftjbod.storage.log.log_replay import ReplayNeededError
from kraftjbod.storage.log.open_transactions import OpenTransactions, last_stable_offset
from kraftjbod.storage.log.producer_state import DEFAULT_PRODUCER_LIMITS, ProducerState
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log.verification_guards import ProducerTerms
from kraftjbod.storage.moves.future_log import FutureLog
from kraftjbod.storage.segments.segment_scrub import SegmentScrub
from kraftjbod.storage.vfs import OpenMode, write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    close_log,
    read_by_index,
    read_segment,
    truncate_by_index,
    with_rebuilds,
)
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.work_count import peak_bytes

CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, retention_bytes=2000)
UNGUARDED = ProducerTerms(is_guarded=False, checks_sequence=False)
NOW_MS = 1_000_000
SOURCE = DirectoryId(bytes(15) + b"\x01")
GOLDEN = Path(__file__).parents[3] / "golden" / "kafka_transactions"


@dataclass
class Batch:
    producer_id: int
    base: int
    last: int
    is_transactional: bool
    commits: bool | None = None
    """The result of a marker, None for a batch of records."""


@dataclass
class Model:
    """The log as a list of batches, and the results derived from it."""

    batches: list[Batch] = field(default_factory=list)
    start: int = 0

    def truncate(self, end: int) -> None:
        self.batches = [one for one in self.batches if one.last < end]

    def transactions(self) -> list[tuple[int, int, int, bool | None]]:
        """Return (first offset, marker offset or infinity, producer id, result) of each one."""
        found, begun = [], dict[int, int]()
        for one in self.batches:
            if one.commits is not None:
                first = begun.pop(one.producer_id, None)
                if first is not None:
                    found.append((first, one.last, one.producer_id, one.commits))
            elif one.is_transactional:
                begun.setdefault(one.producer_id, one.base)
        return found + [(first, 2**62, pid, None) for pid, first in begun.items()]

    def stable(self, high_watermark: int, start: int) -> tuple[int, int]:
        """Return the last stable offset with full knowledge, and without replicated ends."""
        every = self.transactions()
        strict = min((first for first, last, *_ in every if last >= high_watermark), default=2**62)
        loose = min((first for first, *_, how in every if how is None), default=2**62)
        clamp = [min(max(one, start), high_watermark) for one in (strict, loose)]
        return clamp[0], clamp[1]

    def committed(self, begin: int, end: int) -> list[int]:
        """Return the base offsets of the batches that a read_committed reader must get."""
        fate = {}
        for first, last, pid, how in self.transactions():
            for one in self.batches:
                if one.producer_id == pid and one.is_transactional and first <= one.base <= last:
                    fate[one.base] = how
        return [
            one.base
            for one in self.batches
            if one.commits is None
            and begin <= one.base
            and one.last < end
            and fate.get(one.base, True)
        ]


def read_committed(log: UnifiedLog, begin: int, end: int, max_bytes: int) -> tuple[list[int], int]:
    """Return the base offsets that Java's consumer delivers, and the offset of its next fetch."""
    data = read_by_index(log, begin, max_bytes, end)
    headers = list(batches(data))
    if not headers:
        return [], end
    upper = headers[-1][1].next_offset
    aborted = with_rebuilds(log, lambda _: log.aborted_between(begin, upper))
    waiting = sorted(aborted, key=lambda one: one.first_offset)
    active, got = set(), []
    for position, header in headers:
        while waiting and waiting[0].first_offset <= header.last_offset:
            active.add(waiting.pop(0).producer_id)
        if header.is_control:
            marker = read_marker(data, position, header)
            if marker is not None and not marker.is_commit:
                active.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in active:
            continue
        elif header.base_offset >= begin:
            got.append(header.base_offset)
    return got, upper


class Walk:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = MemVfs()
        self.vfs = FaultVfs(self.disk)
        self.vfs.make_dirs("/d1")
        self.vfs.make_dirs("/d2")
        self.log = create_log(self.vfs, "/d1", TP, TOPIC_ID, CONFIG)
        self.follower_vfs = MemVfs()
        self.follower_vfs.make_dirs("/d1")
        self.follower = create_log(self.follower_vfs, "/d1", TP, TOPIC_ID, CONFIG)
        self.model = Model()
        self.high_watermark = 0
        self.epoch = 0
        self.has_forgotten = False

    def append(self) -> None:
        pid, count = self.dice.randrange(5), self.dice.randrange(1, 4)
        is_open = any(p == pid and how is None for *_, p, how in self.model.transactions())
        is_transactional = is_open or self.dice.random() < 0.7
        data = build_batch(
            [Record(key=b"k", value=bytes(self.dice.randrange(30)), timestamp_ms=NOW_MS)] * count,
            producer_id=pid,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=is_transactional,
        )
        header = read_header(data)
        done = self.log.append_as_leader(data, [header], self.epoch, NOW_MS, UNGUARDED)
        self.model.batches.append(Batch(pid, done.base_offset, done.last_offset, is_transactional))

    def end(self) -> None:
        pid, commits = self.dice.randrange(5), self.dice.random() < 0.5
        done = self.log.append_marker(
            pid,
            0,
            TransactionMarker(commits, 0),
            transaction_version=0,
            leader_epoch=self.epoch,
            now_ms=NOW_MS,
        )
        self.model.batches.append(Batch(pid, done.base_offset, done.last_offset, True, commits))

    def commit(self) -> None:
        ends = [one.last + 1 for one in self.model.batches]
        possible = [end for end in ends if end >= self.high_watermark]
        self.high_watermark = self.dice.choice(possible or [self.high_watermark])
        self.log.high_watermark = self.high_watermark

    def truncate(self) -> None:
        end = self.log.view().log_end_offset
        offset = self.dice.randint(self.high_watermark, end)
        truncate_by_index(self.log, offset)
        self._ends_at(self.log.view().log_end_offset)
        self.epoch += 1

    def flush(self) -> None:
        self.log.flush()

    def delete(self) -> None:
        offset = self.dice.randint(self.model.start, self.high_watermark)
        self.log.start_at(offset)
        self.model.start = self.log.view().log_start_offset

    def retain(self) -> None:
        self.log.delete_old_segments(NOW_MS, self.high_watermark)
        for segment in self.log.segments.take_retired():
            segment.purge()
        self.model.start = self.log.view().log_start_offset

    def stop(self) -> None:
        close_log(self.log, self.vfs)
        self._reload(self.log.view().recovery_point, was_clean=True)

    def crash(self) -> None:
        point = self.dice.choice([0, self.log.view().recovery_point])
        self.disk = self.disk.crash_clone(self.dice.randrange(10**6))
        self.vfs = FaultVfs(self.disk)
        self._reload(point, was_clean=False)

    def _reload(self, recovery_point: int, *, was_clean: bool) -> None:
        self.log = (
            LogLoader(
                vfs=self.vfs,
                directory=f"/d1/{TP}",
                topic_partition=TP,
                config=CONFIG,
                was_clean=was_clean,
                recovery_point=recovery_point,
                log_start_offset=self.model.start,
            )
            .load()
            .log
        )
        self._ends_at(self.log.view().log_end_offset)
        self.model.start = self.log.view().log_start_offset
        self.high_watermark = max(min(self.high_watermark, self.model_end), self.model.start)
        self.log.high_watermark = self.high_watermark

    @property
    def model_end(self) -> int:
        return self.log.view().log_end_offset

    def _ends_at(self, end: int) -> None:
        self.model.truncate(end)
        self.has_forgotten = True
        if self.follower.view().log_end_offset > end:
            self.follower.truncate_to(end)

    def move(self) -> None:
        """Move the log to another directory of the same disk and back under the old name."""
        copy = FutureLog.create(
            self.vfs, "/d2", TP, TOPIC_ID, move_id=Uuid(bytes(16)), source_directory_id=SOURCE
        )
        view = self.log.view()
        while not copy.step(view, None, self.vfs, max_bytes=200, by_kernel=False).is_mirror:
            pass
        carried = with_rebuilds(self.log, lambda _: self.log.carried_state())
        copy.finish(carried)
        self.log.segments.close()
        self.vfs.remove_tree(self.log.directory)
        self.log = copy.become_current(carried, CONFIG, DEFAULT_PRODUCER_LIMITS)
        self.log.segments.move_to(f"/d1/{TP}")
        self.log.high_watermark = self.high_watermark
        self.has_forgotten = True

    def spoil(self) -> None:
        """Truncate the transaction indexes of some closed segments while the log is closed."""
        self.stop()
        for segment in self.log.segments.all[:-1]:
            if segment.transactions is None and self.dice.random() < 0.5:
                self.vfs.open(segment.transactions_path, OpenMode.READ_WRITE).truncate(33)

    def fill(self) -> None:
        """Fail one operation of a step with ENOSPC; the step must have no partial effect."""
        step = self.dice.choice([self.append, self.end, self.truncate, self.flush, self.retain])
        end = self.log.view().log_end_offset
        kinds = frozenset({"write_at", "rename"})
        fault = Fault(errno=ENOSPC, kinds=kinds, nth=self.dice.randint(1, 5), sticky=False)
        self.vfs.inject(fault)
        try:
            step()
        except OSError:
            if step in (self.append, self.end):
                assert self.log.view().log_end_offset == end
            self._ends_at(self.log.view().log_end_offset)
            self.model.start = self.log.view().log_start_offset
        finally:
            self.vfs.clear()

    def replicate(self) -> None:
        start, theirs = self.follower.view().log_end_offset, self.log.view()
        if start < theirs.log_start_offset:
            self.follower.truncate_fully_and_start_at(theirs.log_start_offset)
            start = theirs.log_start_offset
        while start < theirs.log_end_offset:
            data = read_by_index(self.log, start, 300, 2**62)
            first = read_header(data).base_offset
            if first < start:
                # A log begins with a batch; a follower cannot start in the middle of one.
                self.follower.truncate_fully_and_start_at(first)
            self.follower.append_as_follower(data, NOW_MS)
            start = self.follower.view().log_end_offset
        for log in (self.log, self.follower):
            self.check(log, theirs.log_end_offset, exact=False)

    def check(self, log: UnifiedLog, high_watermark: int, *, exact: bool) -> None:
        view = log.view()
        strict, loose = self.model.stable(high_watermark, view.log_start_offset)
        stable = view.last_stable_offset(high_watermark)
        if exact:
            assert stable == strict, (stable, strict)
        elif self.model.start == 0:
            assert strict <= stable <= loose, (strict, stable, loose)
        else:
            # Transactions that began before the log start may be forgotten with their records.
            assert strict <= stable
        begin = self.dice.randint(view.log_start_offset, max(stable, view.log_start_offset))
        while begin < stable:
            got, after = read_committed(log, begin, stable, self.dice.choice([1, 150, 10**6]))
            assert got == self.model.committed(begin, after), (begin, after)
            begin = after


@each_case("seed", [*range(100), 843, 3111, 10032])
def test_read_committed_returns_the_committed_batches_after_random_log_changes(seed: int) -> None:
    walk = Walk(seed)
    steps = {
        walk.append: 12,
        walk.end: 7,
        walk.commit: 4,
        walk.replicate: 2,
        walk.flush: 1,
        walk.truncate: 1,
        walk.stop: 1,
        walk.crash: 1,
        walk.move: 0.5,
        walk.spoil: 0.5,
        walk.fill: 2,
        walk.delete: 0.3,
        walk.retain: 0.3,
    }
    for _ in range(50):
        walk.dice.choices(list(steps), list(steps.values()))[0]()
        walk.check(walk.log, walk.high_watermark, exact=not walk.has_forgotten)


def test_transaction_files_written_by_kafka_are_read_and_written_identically() -> None:
    """Kafka 4.3 wrote the files: two producers, three of their transactions aborted."""
    logs = [one.read_bytes() for one in sorted(GOLDEN.glob("*.log"))]
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, CONFIG)
    log.append_as_follower(logs[0], NOW_MS)
    log.roll()
    log.append_as_follower(logs[1], NOW_MS)
    close_log(log, vfs)
    theirs = (GOLDEN / "00000000000000000004.txnindex").read_bytes()
    assert vfs.read_if_exists(f"/d1/{TP}/00000000000000000004.txnindex") == theirs
    assert not vfs.exists(f"/d1/{TP}/00000000000000000000.txnindex")
    snapshot = ProducerState.from_snapshot((GOLDEN / "00000000000000000015.snapshot").read_bytes())
    assert snapshot is not None
    ours = {one.producer_id: one._replace(last_timestamp_ms=0) for one in log.known_producers()}
    kafkas = {one.producer_id: one._replace(last_timestamp_ms=0) for one in snapshot.known()}
    assert ours == kafkas
    # The snapshot forgets transactions that have ended, whether replicated or not.
    still_open = [one[:3] for one in log.view().unstable if one.is_open]
    assert [one[:3] for one in snapshot.transactions.unstable] == still_open


@pytest.mark.parametrize("spoilt", ["sound", "empty", "another producer", "gone"])
def test_scrub_repairs_a_transaction_index_that_contradicts_the_markers(spoilt: str) -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, CONFIG)
    for part in sorted(GOLDEN.glob("*.log")):
        log.append_as_follower(part.read_bytes(), NOW_MS)
    log.roll()
    log.flush()
    segment, following = log.segments.all[1:3]
    path = segment.transactions_path
    sound = bytes(vfs.read_if_exists(path) or b"")
    wrong = {
        "sound": sound,
        "empty": b"",
        "another producer": sound[:2] + bytes(7) + b"\x05" + sound[10:],
    }
    vfs.unlink_if_exists(path)
    if spoilt in wrong:
        write_atomically(vfs, path, wrong[spoilt])
    file = vfs.open(segment.path, OpenMode.READ)
    scrub = SegmentScrub(vfs=vfs, file=file, segment=segment, end_offset=following.base_offset)
    while not scrub.is_done:
        scrub.step()
    scrub.close()
    assert scrub.has_findings is (spoilt != "sound")
    if spoilt == "sound":
        assert log.take_scrubbed(scrub)
    else:
        with pytest.raises(ReplayNeededError) as unread:
            log.take_scrubbed(scrub)
        read_segment(log, unread.value)
    assert vfs.read_if_exists(path) == sound


# --- cost -----------------------------------------------------------------------------------------


def _calls(work: Callable[[], object]) -> int:
    """Count the Python and C calls of ``work``, steps of generators included."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def _short_transactions(count: int) -> bytes:
    """Return ``count`` transactions of one record each, of two producers in turn."""
    parts = []
    for number in range(count):
        producer_id, base = number % 2, 2 * number
        record = Record(value=b"v", timestamp_ms=NOW_MS)
        marker = build_marker(
            TransactionMarker(True, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=NOW_MS,
        )
        parts += [
            build_batch(
                [record],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number // 2,
                is_transactional=True,
                base_offset=base,
            ),
            (base + 1).to_bytes(8, "big") + marker[8:],  # The CRC does not include the offset.
        ]
    return b"".join(parts)


def test_append_and_load_of_transactions_cost_calls_in_proportion_to_their_number() -> None:
    """A follower that catches up appends thousands of transactions that it does not know to be
    replicated. A quadratic cost took 10 seconds for a chunk of 1 MB, so that the watch took healthy
    directories offline, and each restart failed in the same way.
    """
    appends, loads = [], []
    for count in (200, 2_000):
        vfs = MemVfs()
        vfs.make_dirs("/d1")
        log = create_log(vfs, "/d1", TP, TOPIC_ID, TopicConfig())
        appends.append(_calls(partial(log.append_as_follower, _short_transactions(count), NOW_MS)))
        assert log.view().last_stable_offset(2 * count - 1) == 2 * count - 2
        log.flush()
        loader = LogLoader(
            vfs=vfs,
            directory=f"/d1/{TP}",
            topic_partition=TP,
            config=TopicConfig(),
            was_clean=False,
        )
        loads.append(_calls(loader.load))
    for few, many in (appends, loads):
        assert many < 12 * few


@pytest.mark.parametrize("kept", [1, 3, 1_000])
@each_case("seed", range(30))
def test_last_stable_offset_is_exact_or_too_low_after_random_transactions(
    seed: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be too low, never too high, after more than ``ENDED_KEPT`` ended transactions."""
    monkeypatch.setattr(open_transactions, "ENDED_KEPT", kept)
    dice, found = random.Random(seed), OpenTransactions()
    model: dict[tuple[int, int], int] = {}
    begun: dict[int, int] = {}
    #: Start times by first offset and producer.
    starts: dict[tuple[int, int], int] = {}
    high_watermark = 0
    for offset in range(200):
        producer_id = dice.randrange(6)
        if producer_id in begun and dice.random() < 0.5:
            first = begun.pop(producer_id)
            assert found.end(producer_id, offset) == first
            model[first, producer_id] = offset
            assert found.stable_after(offset) == min(begun.values(), default=offset + 1)
        else:
            now_ms = dice.randint(-1, 9)  # The clock may be set back.
            found.add_batch(producer_id, offset, now_ms)
            begun.setdefault(producer_id, offset)
            starts.setdefault((begun[producer_id], producer_id), now_ms)
            model.setdefault((begun[producer_id], producer_id), 2**62)
        known = [starts[first, who] for who, first in begun.items() if starts[first, who] >= 0]
        assert found.oldest_start_ms == min(known, default=-1)
        high_watermark = dice.choice([high_watermark, dice.randint(high_watermark, offset)])
        found.replicated(high_watermark)
        for end in range(high_watermark, offset + 2):
            exact = min((f for (f, _), last in model.items() if last >= end), default=end)
            stable = last_stable_offset(found.unstable, log_start_offset=0, high_watermark=end)
            assert stable == min(exact, end) if kept == 1_000 else stable <= min(exact, end)
        assert len(found.unstable) <= 2 * kept + 1


def test_unstable_has_as_many_transactions_for_any_number_of_open_ones() -> None:
    """A view is made for each append, and must not copy the open transactions."""
    for count in (20, 200, 2_000):
        found = OpenTransactions()
        for number in range(count):
            found.add_batch(number, number, NOW_MS)
        found.end(count // 2, count)
        assert [one.first_offset for one in found.unstable] == [0]
        assert found.oldest_start_ms == NOW_MS
        found.end(0, count + 1)
        assert [one.first_offset for one in found.unstable] == [0, 1]


def test_start_times_of_ended_transactions_take_a_bounded_amount_of_memory() -> None:
    """Transactions that end while an older one stays open leave their start times behind."""

    def pass_time(found: OpenTransactions) -> None:
        for offset in range(1, 10_000, 2):
            found.add_batch(1, offset, NOW_MS + offset)
            found.end(1, offset + 1)
            found.replicated(offset + 2)
            assert found.oldest_start_ms == NOW_MS

    warmed, found = OpenTransactions(), OpenTransactions()
    warmed.add_batch(0, 0, NOW_MS)
    pass_time(warmed)  # The interpreter keeps freed tuples for reuse.
    found.add_batch(0, 0, NOW_MS)
    assert peak_bytes(lambda: pass_time(found)) < 50_000
    found.end(0, 10_002)
    assert found.oldest_start_ms == -1
