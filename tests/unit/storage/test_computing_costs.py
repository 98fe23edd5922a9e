"""Costs of operations on a log in executed bytecodes, at 1, 10 and 100 times a size.

test_operation_costs.py counts what operations read and write. An operation whose computing grows
with a size makes a load or a fetched chunk quadratic: a chunk of 1 MB then keeps the directory's
thread busy for many seconds without progress, and the watch takes a healthy directory offline.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import read_header
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log.log_loader import LogLoader, create_log
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log.verification_guards import (
    ORDINARY_TERMS,
    NotVerifiedError,
    ProducerTerms,
)
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP
from tests.work_count import count_bytecodes

NOW_MS: Final = 1_000_000
CONFIG: Final = TopicConfig(index_interval_bytes=100, retention_ms=1)
#: No snapshot inside of a segment, since its cost is in proportion to the producers.
LIMITS: Final = ProducerLimits(snapshot_interval_bytes=2**40)
UNGUARDED: Final = ProducerTerms(is_guarded=False)
#: The producers of the counted operations.
PLAIN, TRANSACTIONAL = 1, 2
#: First of the producers that make a log large.
OTHERS: Final = 100
LATEST_EPOCH: Final = 1_000_000
UNIT: Final = 20
#: An operation at 100 times the size may execute so many more bytecodes, for binary searches.
SLACK: Final = 300


def append(
    log: UnifiedLog,
    producer_id: int = -1,
    sequence: int = -1,
    *,
    in_transaction: bool = False,
    epoch: int = 0,
    terms: ProducerTerms = UNGUARDED,
) -> None:
    data = build_batch(
        [Record(value=b"v", timestamp_ms=NOW_MS)],
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 0,
        base_sequence=sequence,
        is_transactional=in_transaction,
    )
    log.append_as_leader(data, [read_header(data)], epoch, NOW_MS, terms)


def end(log: UnifiedLog, producer_id: int, *, commits: bool = True, epoch: int = 0) -> None:
    log.append_marker(
        producer_id,
        0,
        TransactionMarker(commits, 0),
        transaction_version=0,
        leader_epoch=epoch,
        now_ms=NOW_MS,
    )


# -- sizes ---------------------------------------------------------------------------------------


def batches_of_no_producer(log: UnifiedLog, count: int) -> None:
    for _ in range(count):
        append(log)


def producers(log: UnifiedLog, count: int) -> None:
    for number in range(count):
        append(log, OTHERS + number, 0)


def open_transactions(log: UnifiedLog, count: int) -> None:
    for number in range(count):
        append(log, OTHERS + number, 0, in_transaction=True)


def committed_transactions(log: UnifiedLog, count: int) -> None:
    for number in range(count):
        append(log, OTHERS + number % 2, number // 2, in_transaction=True)
        end(log, OTHERS + number % 2)


def aborted_transactions(log: UnifiedLog, count: int) -> None:
    for number in range(count):
        append(log, OTHERS + number % 2, number // 2, in_transaction=True)
        end(log, OTHERS + number % 2, commits=False)


def interleaved_transactions(log: UnifiedLog, count: int) -> None:
    open_transactions(log, count)
    for number in range(count):
        end(log, OTHERS + number, commits=number % 2 == 0)


def segments(log: UnifiedLog, count: int) -> None:
    for _ in range(count):
        append(log)
        log.roll()


def leader_epochs(log: UnifiedLog, count: int) -> None:
    for number in range(count):
        append(log, epoch=number + 1)


def verifications(log: UnifiedLog, count: int) -> None:
    """Delayed requests: their producers wait for the coordinator's answer."""
    for number in range(count):
        with pytest.raises(NotVerifiedError):
            append(log, OTHERS + number, 0, in_transaction=True, terms=ORDINARY_TERMS)


Grow = Callable[[UnifiedLog, int], None]
OF_BATCHES: Final[tuple[Grow, ...]] = (
    batches_of_no_producer,
    producers,
    open_transactions,
    committed_transactions,
    aborted_transactions,
    interleaved_transactions,
    leader_epochs,
)
SIZES: Final[tuple[Grow, ...]] = (*OF_BATCHES, segments, verifications)


# -- operations ----------------------------------------------------------------------------------

Operate = Callable[[UnifiedLog], object]


def read_at(offset: int) -> Operate:
    """Return a read of one batch; negative offsets count from the end."""

    def read(log: UnifiedLog) -> None:
        log_end = log.view().log_end_offset
        assert log.read(offset % log_end, 1, log_end, True)

    return read


#: In this order, each on the log that the ones before have changed.
OPERATIONS: Final[dict[str, Operate]] = {
    "append in a new epoch": lambda log: append(log, epoch=LATEST_EPOCH),
    "append": lambda log: append(log, epoch=LATEST_EPOCH),
    "idempotent append": lambda log: append(log, PLAIN, 1, epoch=LATEST_EPOCH),
    "begin": lambda log: append(log, TRANSACTIONAL, 1, in_transaction=True, epoch=LATEST_EPOCH),
    "commit": lambda log: end(log, TRANSACTIONAL, epoch=LATEST_EPOCH),
    "begin again": lambda log: append(
        log, TRANSACTIONAL, 2, in_transaction=True, epoch=LATEST_EPOCH
    ),
    "abort": lambda log: end(log, TRANSACTIONAL, commits=False, epoch=LATEST_EPOCH),
    "view": lambda log: log.view(),
    "stable offset": lambda log: log.view().last_stable_offset(log.view().log_end_offset),
    "read the first batch": read_at(0),
    "read the last batch": read_at(-1),
    "aborted at the start": lambda log: log.aborted_between(0, 1),
    "flush": lambda log: log.flush(),
    "flush of one append": lambda log: (append(log, epoch=LATEST_EPOCH), log.flush()),
    "delete records": lambda log: log.start_at(1),
    "retention": lambda log: log.delete_old_segments(NOW_MS, 0),
    "roll": lambda log: log.roll(),
}
#: Bytecodes per unit of a size, where the cost is in proportion to it.
PROPORTIONAL: Final[dict[tuple[str, Grow], int]] = {
    # The first transaction that the high watermark has not passed. ENDED_KEPT limits the search.
    ("stable offset", committed_transactions): 8,
    ("stable offset", aborted_transactions): 8,
    ("stable offset", interleaved_transactions): 8,
    # A view has no list of the segments with aborted transactions.
    ("aborted at the start", segments): 20,
    # These files are written as a whole: leader epochs, aborted transactions, producers.
    ("flush", leader_epochs): 20,
    ("flush", aborted_transactions): 20,
    ("flush", interleaved_transactions): 10,
    ("flush", segments): 1_200,
    ("roll", producers): 80,
    ("roll", open_transactions): 80,
    ("roll", interleaved_transactions): 80,
    # Whether a snapshot belongs to a segment.
    ("roll", segments): 20,
    # Producers and verifications that expire.
    ("retention", producers): 30,
    ("retention", open_transactions): 30,
    ("retention", interleaved_transactions): 30,
    ("retention", verifications): 20,
}


def new_log() -> tuple[MemVfs, UnifiedLog]:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    return vfs, create_log(vfs, "/d1", TP, TOPIC_ID, CONFIG, producer_limits=LIMITS)


@pytest.mark.parametrize("grow", SIZES, ids=lambda grow: grow.__name__)
def test_storage_operation_bytecodes_do_not_grow_with_the_size_unless_listed(grow: Grow) -> None:
    counts: dict[str, list[int]] = {name: [] for name in OPERATIONS}
    for times in (1, 10, 100):
        _, log = new_log()
        append(log, PLAIN, 0)
        append(log, TRANSACTIONAL, 0, in_transaction=True)
        end(log, TRANSACTIONAL)
        grow(log, UNIT * times)
        for name, operate in OPERATIONS.items():
            counts[name].append(count_bytecodes(partial(operate, log)))
    for name, (one, ten, hundred) in counts.items():
        per_unit = PROPORTIONAL.get((name, grow), 0)
        assert ten <= one + SLACK + per_unit * 9 * UNIT, (name, one, ten, hundred)
        assert hundred <= one + SLACK + per_unit * 99 * UNIT, (name, one, ten, hundred)


@pytest.mark.parametrize("grow", OF_BATCHES, ids=lambda grow: grow.__name__)
def test_load_and_follower_append_execute_bytecodes_in_proportion_to_their_batches(
    grow: Grow,
) -> None:
    """A follower that catches up, or a start after a crash, does not know the high watermark."""
    loads, appends = [], []
    for times in (1, 10, 100):
        vfs, log = new_log()
        grow(log, UNIT * times)
        log.flush()
        batches = bytes(log.read(0, 2**30, log.view().log_end_offset, True))
        loader = LogLoader(
            vfs=vfs,
            directory=f"/d1/{TP}",
            topic_partition=TP,
            config=CONFIG,
            was_clean=False,
            producer_limits=LIMITS,
        )
        loads.append(count_bytecodes(loader.load))
        _, follower = new_log()
        appends.append(count_bytecodes(partial(follower.append_as_follower, batches, NOW_MS)))
        assert follower.view().log_end_offset == log.view().log_end_offset
    for one, ten, hundred in (loads, appends):
        assert hundred - ten <= 10 * (ten - one) * 1.1, (one, ten, hundred)


def test_load_of_segments_executes_bytecodes_in_proportion_to_their_number() -> None:
    loads = []
    for times in (1, 10, 100):
        vfs, log = new_log()
        segments(log, UNIT * times)
        log.flush()
        loader = LogLoader(
            vfs=vfs, directory=f"/d1/{TP}", topic_partition=TP, config=CONFIG, was_clean=False
        )
        loads.append(count_bytecodes(loader.load))
    one, ten, hundred = loads
    assert hundred - ten <= 10 * (ten - one) * 1.1, loads


def test_truncation_and_retention_execute_bytecodes_in_proportion_to_removed_segments() -> None:
    """Each segment has another leader epoch."""
    truncations, deletions = [], []
    for times in (1, 10, 100):
        for counts, operate in (
            (truncations, lambda log: log.truncate_to(1)),
            (deletions, delete_all),
        ):
            _, log = new_log()
            for number in range(UNIT * times):
                append(log, epoch=number + 1)
                log.roll()
            log.flush()
            counts.append(count_bytecodes(partial(operate, log)))
            assert len(log.segments.all) == 1
    for one, ten, hundred in (truncations, deletions):
        assert hundred - ten <= 10 * (ten - one) * 1.5, (one, ten, hundred)


def delete_all(log: UnifiedLog) -> None:
    now_ms, log_end = 10 * NOW_MS, log.view().log_end_offset
    while len(log.segments.all) > 1:
        assert log.delete_old_segments(now_ms, log_end)
