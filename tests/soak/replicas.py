"""Compares the replicas of partitions byte by byte on the disks of stopped brokers.

* Followers store batches exactly as the leader does, headers included. From the log start offset
  on, the concatenated segments of complete replicas are equal.
* Batches below the log start offset are hidden from readers. A replica keeps them until their
  whole segment is deleted, but a replica that was recreated begins at the log start offset of that
  time. Therefore they are not compared.
* The log start offset comes from the directory's checkpoint, not from the first segment. So a
  replica that lost its first batches, or begins before the deleted records, is found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.record_batch import HEADER_BYTES, read_header
from kraftjbod.storage.checkpoints import parse_offsets
from kraftjbod.storage.dir_names import LOG_START_CHECKPOINT, LOG_SUFFIX

_CHUNK_BYTES: Final = 1024 * 1024


class _Content(NamedTuple):
    """The log start offset of a replica, and the batches with records from there on."""

    log_start: int
    size_bytes: int
    digest: str


def differing_replicas(log_dirs: Iterable[Path], topic: str, partitions: int) -> list[str]:
    """Return a sentence for each partition whose logs differ, and each replica with damage."""
    findings = []
    dirs = [(path, _log_starts(path)) for path in log_dirs]
    for partition in range(partitions):
        tp = TopicPartition(topic, partition)
        copies: dict[Path, _Content] = {}
        for path, log_starts in dirs:
            replica = path / str(tp)
            if not replica.is_dir():
                continue
            try:
                copies[replica] = _content(replica, log_starts.get(tp, 0))
            except CorruptRecordError as e:
                findings.append(f"{replica} is damaged: {e}")
        if len(set(copies.values())) > 1:
            found = ", ".join(
                f"{path}: {one.size_bytes} bytes from {one.log_start} on"
                for path, one in copies.items()
            )
            findings.append(f"the copies of {tp} differ: {found}")
    return findings


def _log_starts(log_dir: Path) -> dict[TopicPartition, int]:
    """Return the log start offsets in the directory's checkpoint, which may be missing."""
    path = log_dir / LOG_START_CHECKPOINT
    return parse_offsets(path.read_text(), str(path)) if path.exists() else {}


def _content(replica: Path, log_start: int) -> _Content:
    digest = hashlib.sha256()
    size_bytes = 0
    segments = sorted(replica.glob(f"*{LOG_SUFFIX}"))
    for number, segment in enumerate(segments):
        if number + 1 < len(segments) and int(segments[number + 1].stem) <= log_start:
            continue
        with segment.open("rb") as file:
            file.seek(_position_of(segment, log_start))
            while content := file.read(_CHUNK_BYTES):
                digest.update(content)
                size_bytes += len(content)
    return _Content(log_start, size_bytes, digest.hexdigest())


def _position_of(segment: Path, log_start: int) -> int:
    """Return the position of the segment's first batch with a record from ``log_start`` on.

    :raises CorruptRecordError: a header before that is invalid.
    """
    position = 0
    with segment.open("rb") as file:
        while header_bytes := file.read(HEADER_BYTES):
            header = read_header(header_bytes)
            if header.next_offset > log_start:
                break
            position += header.size_bytes
            file.seek(position)
    return position
