"""Tests of the comparison of replicas, on files as stopped brokers leave them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.checkpoints import format_offsets
from kraftjbod.storage.dir_names import LOG_START_CHECKPOINT, LOG_SUFFIX, offset_file_name
from tests.soak.replicas import differing_replicas

TP: Final = TopicPartition("t", 0)
#: Each batch has two records.
BATCHES: Final = [
    build_batch([Record(value=b"%d" % (base + n)) for n in range(2)], base_offset=base)
    for base in range(0, 10, 2)
]


def log_dir(path: Path, *segments: list[bytes], log_start: int | None, first: int = 0) -> Path:
    """Write a replica of :data:`TP` to a log directory.

    :param log_start: the entry in the checkpoint; None for no checkpoint.
    :param first: base offset of the first segment.
    """
    replica = path / str(TP)
    replica.mkdir(parents=True)
    for batches in segments:
        (replica / offset_file_name(first, LOG_SUFFIX)).write_bytes(b"".join(batches))
        first += 2 * len(batches)
    if log_start is not None:
        (path / LOG_START_CHECKPOINT).write_bytes(format_offsets({TP: log_start}))
    return path


def test_differing_replicas_ignores_deleted_records_that_a_new_replica_lacks(
    tmp_path: Path,
) -> None:
    """A replica that was recreated after DeleteRecords begins at or after the other ones."""
    old = log_dir(tmp_path / "1", BATCHES, log_start=5)
    rolled = log_dir(tmp_path / "2", BATCHES[:2], BATCHES[2:], log_start=5)
    new = log_dir(tmp_path / "3", BATCHES[2:], log_start=5, first=5)
    newer = log_dir(tmp_path / "4", BATCHES[1:], log_start=5, first=2)
    empty = tmp_path / "5"
    assert differing_replicas([old, rolled, new, newer, empty], "t", 2) == []


def test_differing_replicas_finds_a_replica_that_lost_records_after_the_log_start(
    tmp_path: Path,
) -> None:
    old = log_dir(tmp_path / "1", BATCHES, log_start=3)
    same_start = log_dir(tmp_path / "2", BATCHES[2:], log_start=3, first=4)
    own_start = log_dir(tmp_path / "3", BATCHES[2:], log_start=4, first=4)
    no_checkpoint = log_dir(tmp_path / "4", BATCHES[2:], log_start=None, first=4)
    size = len(BATCHES[0])
    for lost, start in ((same_start, 3), (own_start, 4), (no_checkpoint, 0)):
        assert differing_replicas([old, lost], "t", 1) == [
            f"the copies of t-0 differ: {old / 't-0'}: {4 * size} bytes from 3 on, "
            f"{lost / 't-0'}: {3 * size} bytes from {start} on"
        ]


def test_differing_replicas_finds_hidden_records_that_became_visible(tmp_path: Path) -> None:
    """The files are equal, but one replica does not know that records were deleted."""
    forgot = log_dir(tmp_path / "1", BATCHES, log_start=0)
    knows = log_dir(tmp_path / "2", BATCHES, log_start=4)
    assert len(differing_replicas([forgot, knows], "t", 1)) == 1


def test_differing_replicas_finds_other_bytes_and_a_missing_end(tmp_path: Path) -> None:
    whole = log_dir(tmp_path / "1", BATCHES, log_start=0)
    short = log_dir(tmp_path / "2", BATCHES[:-1], log_start=0)
    other = log_dir(tmp_path / "3", [*BATCHES[:-1], BATCHES[-1][:-1] + b"x"], log_start=0)
    assert len(differing_replicas([whole, short], "t", 1)) == 1
    assert len(differing_replicas([whole, other], "t", 1)) == 1


def test_differing_replicas_names_a_replica_with_damage_before_the_log_start(
    tmp_path: Path,
) -> None:
    whole = log_dir(tmp_path / "1", BATCHES, log_start=5)
    damaged = log_dir(tmp_path / "2", [bytes(len(BATCHES[0])), *BATCHES[1:]], log_start=5)
    (finding,) = differing_replicas([whole, damaged], "t", 1)
    assert finding.startswith(f"{damaged / 't-0'} is damaged: ")
