"""Recovery by runs of sound batches has the same result as recovery batch by batch."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import NamedTuple

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol import byte_scans, record_scans
from kraftjbod.protocol.control_records import TransactionMarker, build_marker, read_marker
from kraftjbod.protocol.record_batch import BatchHeader, read_header
from kraftjbod.storage.log import producer_recovery
from kraftjbod.storage.log.leader_epochs import EpochEntries, assign_epoch
from kraftjbod.storage.log.producer_recovery import ProducerRecovery
from kraftjbod.storage.log.producer_snapshots import ProducerSnapshots
from kraftjbod.storage.log.producer_state import ProducerLimits, ProducerState
from kraftjbod.storage.segments import segment_indexes
from kraftjbod.storage.segments.batch_runs import RUN_BYTES, sound_runs
from kraftjbod.storage.segments.batch_walk import LARGEST_RELATIVE_OFFSET, sound_batches
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_indexes import BELOW_EPOCHS, FreshIndexes
from kraftjbod.storage.segments.steps import run_all
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch

COMPILED = record_scans.compiled_form()
FORMS = [byte_scans] if COMPILED is None else [byte_scans, COMPILED]
INTERVAL_BYTES = 200
TRANSACTIONAL = 0x10


class Found(NamedTuple):
    """The results of a walk over a segment."""

    size_bytes: int
    next_offset: int
    offsets: list[tuple[int, int]]
    times: list[tuple[int, int]]
    largest: tuple[int, int] | None
    bytes_since_entry: int
    first_timestamp: int | None
    epochs: EpochEntries
    producers: bytes
    unstable: object
    aborted: list[object]


@dataclass
class Case:
    """A segment file, and the settings of its walk."""

    data: bytes
    base_offset: int = 0
    may_have_gaps: bool = False
    orders_epochs: bool = True
    max_producers: int = 10_000
    #: Offset of a snapshot with producer 99.
    snapshot: int | None = None
    run_bytes: int = RUN_BYTES
    reads: list[int] = field(default_factory=list)

    def read_at(self, position: int, size: int) -> bytes:
        self.reads.append(position)
        assert len(self.reads) <= 10 + len(self.data), "the walk does not end"
        return self.data[position : position + size]

    @property
    def limits(self) -> ProducerLimits:
        return ProducerLimits(max_producers=self.max_producers)

    def snapshot_state(self) -> ProducerState:
        state = ProducerState()
        state.record(read_header(batch(producer=(99, 0, 5))), 0, 7)
        return state


def summed_up(
    case: Case,
    size_bytes: int,
    next_offset: int,
    fresh: FreshIndexes,
    epochs: EpochEntries,
    state: ProducerState,
    aborted: list[object],
) -> Found:
    indexes = fresh.indexes
    return Found(
        size_bytes,
        next_offset,
        list(indexes.offsets.entries()),
        [tuple(entry) for entry in indexes.times.entries()],
        indexes.largest,
        indexes._bytes_since_entry,
        fresh.first_timestamp,
        epochs,
        state.to_snapshot(),
        state.transactions.unstable,
        aborted,
    )


def batch_by_batch(case: Case) -> Found:
    """Walk in three passes of Python: headers and CRCs, indexes and epochs, producers."""
    case.reads.clear()
    limit = case.base_offset + LARGEST_RELATIVE_OFFSET + 1
    fresh = FreshIndexes(case.base_offset, INTERVAL_BYTES)
    epochs: EpochEntries = ()
    size_bytes, next_offset = 0, case.base_offset
    sound: list[tuple[int, BatchHeader]] = []
    for located in sound_batches(
        case.read_at,
        position=0,
        end=len(case.data),
        next_offset=case.base_offset,
        check_crc_of_each=True,
        on_progress=lambda _: None,
        gaps_below=limit if case.may_have_gaps else None,
    ):
        header = located.header
        is_lower = bool(epochs) and header.partition_leader_epoch < epochs[-1].epoch
        if header.last_offset >= limit or (case.orders_epochs and is_lower):
            break
        if not epochs or header.partition_leader_epoch != epochs[-1].epoch:
            epochs = assign_epoch(epochs, header.partition_leader_epoch, header.base_offset)
        fresh.take(located)
        sound.append((located.position, header))
        size_bytes += header.size_bytes
        next_offset = header.next_offset
    state, aborted = replayed(case, ProducerState(), sound, 0)
    if case.snapshot is not None and case.snapshot <= next_offset:
        known = ProducerState.from_snapshot(case.snapshot_state().to_snapshot())
        assert known is not None
        state, _ = replayed(case, known, sound, case.snapshot)
    return summed_up(case, size_bytes, next_offset, fresh, epochs, state, aborted)


def replayed(
    case: Case, state: ProducerState, sound: list[tuple[int, BatchHeader]], begin: int
) -> tuple[ProducerState, list[object]]:
    aborted: list[object] = []
    for position, header in sound:
        if header.has_producer_id and header.last_offset >= begin:
            marker = read_marker(case.data, position, header) if header.is_control else None
            offset = header.base_offset
            ended = state.record(header, offset, limits=case.limits, marker=marker)
            if ended is not None:
                aborted.append(ended)
    return state, aborted


def by_runs(case: Case, form: ModuleType) -> Found:
    case.reads.clear()
    vfs = MemVfs()
    vfs.make_dirs("/t")
    snapshots = ProducerSnapshots(vfs, lambda: "/t", [])
    segments = [LogSegment.on_disk(vfs, "/t", case.base_offset, 0, TopicConfig())]
    if case.snapshot is not None:
        snapshots.write(case.snapshot_state(), case.snapshot, segments, sync=False)
    fresh = FreshIndexes(case.base_offset, INTERVAL_BYTES)
    epochs: EpochEntries = ()
    size_bytes = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_indexes, "BatchScan", form.BatchScan)
        patch.setattr(producer_recovery, "latest_of_producers", form.latest_of_producers)
        begin = case.base_offset
        loaded = run_all(snapshots.load(segments, begin, case.limits))
        recovery = ProducerRecovery(snapshots, loaded, begin, case.limits)
        scan = fresh.indexes.batch_scan(
            next_offset=case.base_offset,
            may_have_gaps=case.may_have_gaps,
            check_crc_of_each=True,
            least_epoch=BELOW_EPOCHS if case.orders_epochs else None,
        )
        for run in sound_runs(
            case.read_at,
            scan,
            position=0,
            end=len(case.data),
            on_progress=lambda _: None,
            run_bytes=case.run_bytes,
        ):
            fresh.take(run)
            recovery.take_run(run)
            for epoch, start_offset in scan.epochs:
                epochs = assign_epoch(epochs, epoch, start_offset)
            size_bytes += run.size_bytes
    next_offset = scan.next_offset if size_bytes else case.base_offset
    aborted: list[object] = list(recovery.take_transactions().entries)
    state = recovery.loaded().state
    return summed_up(case, size_bytes, next_offset, fresh, epochs, state, aborted)


def sealed(data: bytes | bytearray) -> bytes:
    """Return the batch with a correct CRC."""
    fixed = bytearray(data)
    struct.pack_into(">I", fixed, 17, crc32c.crc32c(memoryview(fixed)[21:]))
    return bytes(fixed)


def with_attributes(data: bytes, attributes: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(">h", changed, 21, attributes)
    return sealed(changed)


@st.composite
def logs(draw: st.DrawFn, base_offset: int, *, may_have_gaps: bool) -> list[bytes]:
    """Draw batches of a few producers, some in transactions, with markers."""
    made: list[bytes] = []
    offset, epoch, timestamp = base_offset, 0, 1_000_000
    for sequence in range(draw(st.integers(0, 24))):
        kind = draw(st.sampled_from(["plain", "plain", "producer", "producer", "open", "end"]))
        producer = draw(st.integers(0, 3)), draw(st.integers(0, 1))
        epoch += draw(st.sampled_from([0, 0, 0, 1]))
        timestamp += draw(st.integers(-5, 5))
        if may_have_gaps:
            offset += draw(st.sampled_from([0, 0, 1, 1000]))
        if kind == "end":
            marker = TransactionMarker(draw(st.booleans()), draw(st.integers(0, 2)))
            data = bytearray(
                build_marker(
                    marker,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    timestamp_ms=timestamp,
                )
            )
            struct.pack_into(">qii", data, 0, offset, len(data) - 12, epoch)
            made.append(bytes(data))
            offset += 1
            continue
        records = draw(st.integers(1, 3))
        one = batch(
            records,
            base_offset=offset,
            epoch=epoch,
            timestamp=timestamp,
            producer=(-1, -1, -1) if kind == "plain" else (*producer, sequence),
        )
        made.append(with_attributes(one, TRANSACTIONAL) if kind == "open" else one)
        offset += records
    return made


#: Position and format of a header field, and invalid values for it.
HOSTILE: list[tuple[int, str, list[int]]] = [
    (0, ">q", [-1, -(2**63), 2**63 - 1, 2**62, 2**31]),
    (8, ">i", [-1, -(2**31), 0, 48, 49, 2**31 - 1, 10_000]),
    (12, ">i", [-1, -(2**31), 2**31 - 1]),
    (16, ">b", [0, 1, 3, -1]),
    (21, ">h", [-1, 0x20, 0x10, 0x30]),
    (23, ">i", [-1, -(2**31), 2**31 - 1]),
    (35, ">q", [-1, -(2**63), 2**63 - 1]),
    (43, ">q", [-1, -2, -(2**63), 2**63 - 1]),
    (51, ">h", [-1, 2**15 - 1]),
]


@st.composite
def damaged(draw: st.DrawFn, made: list[bytes]) -> bytes:
    """Draw the bytes of a log with one batch changed, lost or hostile, or the log cut."""
    batches = list(made)
    how = draw(st.sampled_from(["whole", "whole", "field", "sealed field", "bit", "lost", "cut"]))
    if not batches or how == "whole":
        return b"".join(batches)
    at = draw(st.integers(0, len(batches) - 1))
    if how in ("field", "sealed field"):
        place, layout, values = draw(st.sampled_from(HOSTILE))
        changed = bytearray(batches[at])
        struct.pack_into(layout, changed, place, draw(st.sampled_from(values)))
        batches[at] = sealed(changed) if how == "sealed field" else bytes(changed)
    elif how == "bit":
        changed = bytearray(batches[at])
        place = draw(st.integers(0, len(changed) - 1))
        changed[place] ^= 1 << draw(st.integers(0, 7))
        batches[at] = bytes(changed)
    elif how == "lost":
        del batches[at]
    data = b"".join(batches)
    return data[: draw(st.integers(0, len(data)))] if how == "cut" else data


@st.composite
def cases(draw: st.DrawFn) -> Case:
    base_offset = draw(st.sampled_from([0, 7, 2**62]))
    may_have_gaps = draw(st.booleans())
    made = draw(logs(base_offset, may_have_gaps=may_have_gaps))
    return Case(
        draw(damaged(made)),
        base_offset=base_offset,
        may_have_gaps=may_have_gaps,
        orders_epochs=draw(st.booleans()),
        max_producers=draw(st.sampled_from([2, 10_000])),
        snapshot=draw(st.none() | st.integers(base_offset + 1, base_offset + 60)),
        run_bytes=draw(st.sampled_from([61, 100, 200, 1000, RUN_BYTES])),
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@given(case=cases())
def test_sound_runs_equal_a_walk_batch_by_batch(form: ModuleType, case: Case) -> None:
    assert by_runs(case, form) == batch_by_batch(case)


def sizes_of_runs(case: Case, *, end: int | None = None) -> list[int]:
    scan = FreshIndexes(0, INTERVAL_BYTES).indexes.batch_scan(
        next_offset=0, may_have_gaps=False, check_crc_of_each=True
    )
    found = sound_runs(
        case.read_at,
        scan,
        position=0,
        end=len(case.data) if end is None else end,
        on_progress=lambda _: None,
        run_bytes=case.run_bytes,
    )
    return [run.size_bytes for run in found]


def test_sound_runs_read_a_batch_larger_than_a_run_at_once() -> None:
    small = [batch(base_offset=at) for at in range(3)]
    large = batch(base_offset=1, body=bytes(5000))
    data = small[0] + large + small[2]
    case = Case(data, run_bytes=1000)
    assert sum(sizes_of_runs(case)) == len(data)
    assert len(case.reads) <= 4


def sound_in(case: Case, *, end: int) -> list[int]:
    found = sound_batches(
        case.read_at,
        position=0,
        end=end,
        next_offset=0,
        check_crc_of_each=True,
        on_progress=lambda _: None,
    )
    return [located.header.size_bytes for located in found]


@pytest.mark.parametrize("walk", [sizes_of_runs, sound_in])
@pytest.mark.parametrize("cut", [1, 30])
def test_sound_walk_ends_in_a_file_shorter_than_its_segment(
    walk: Callable[..., list[int]], cut: int
) -> None:
    data = batch() + batch(base_offset=1)
    assert len(walk(Case(data[:-cut]), end=len(data) + 1000)) == 1


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_sound_runs_of_a_segment_whose_name_exceeds_int64_are_empty(form: ModuleType) -> None:
    assert by_runs(Case(batch(), base_offset=10**20 - 1), form).size_bytes == 0


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_sound_runs_end_at_a_batch_beyond_the_offset_span_of_a_segment(form: ModuleType) -> None:
    """An index entry stores an offset in 32 bits."""
    far = bytearray(batch())
    struct.pack_into(">i", far, 23, 2**31 - 1)
    data = sealed(far) + b"".join(batch(base_offset=2**31 + at) for at in range(9))
    assert by_runs(Case(data), form).size_bytes == len(far)
