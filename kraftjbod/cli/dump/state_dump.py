"""WIRE. Prints the files beside logs: producer snapshots, checkpoints, metadata snapshots."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from kraftjbod.cli.dump.record_formats import metadata_record_text
from kraftjbod.cli.dump.segment_dump import DamagedFileError, DumpItem, optional_long
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.metadata.record_codec import EntryReader
from kraftjbod.raft.log.snapshot_files import (
    SNAPSHOT_FILE,
    SNAPSHOT_PIECE_BYTES,
    load_snapshot,
    read_payload,
)
from kraftjbod.storage.checkpoints import parse_leader_epochs, parse_offsets
from kraftjbod.storage.log.producer_state import snapshot_entries
from kraftjbod.storage.vfs import OpenMode, RealVfs


def dump_producers(path: str) -> Iterator[DumpItem]:
    """Yield a line for each producer of a producer snapshot, with its last batch.

    :raises OSError: the file cannot be read.
    :raises DamagedFileError: the file is damaged.
    """
    with open(path, "rb") as file:
        entries = snapshot_entries(file.read())
    if entries is None:
        raise DamagedFileError(f"{path}: damaged: its version, CRC or length is wrong")
    for one in entries:
        start = one.transaction_first_offset if one.transaction_first_offset >= 0 else None
        facts: dict[str, object] = {
            "producerId": one.producer_id,
            "producerEpoch": one.epoch,
            "coordinatorEpoch": one.coordinator_epoch,
            "currentTxnFirstOffset": start,
            "lastTimestamp": one.timestamp_ms,
        }
        if one.last_offset >= 0:
            facts |= {
                "firstSequence": one.last_sequence - one.delta,
                "lastSequence": one.last_sequence,
                "lastOffset": one.last_offset,
                "offsetDelta": one.delta,
                "timestamp": one.timestamp_ms,
            }
        words = {**facts, "currentTxnFirstOffset": optional_long(start)}
        yield DumpItem(" ".join(f"{name}: {value}" for name, value in words.items()), facts)


def dump_leader_epochs(path: str) -> Iterator[DumpItem]:
    """Yield a line for each leader epoch of a checkpoint.

    :raises OSError: the file cannot be read.
    :raises DamagedFileError: the file is no text.
    :raises CorruptCheckpointError: the file is damaged otherwise.
    """
    for epoch, start in parse_leader_epochs(_text(path), path):
        facts = {"epoch": epoch, "startOffset": start}
        yield DumpItem(f"epoch: {epoch} startOffset: {start}", facts)


def dump_offset_checkpoint(path: str) -> Iterator[DumpItem]:
    """Yield a line for each partition of an offset checkpoint.

    :raises OSError: the file cannot be read.
    :raises DamagedFileError: the file is no text.
    :raises CorruptCheckpointError: the file is damaged otherwise.
    """
    for partition, offset in parse_offsets(_text(path), path).items():
        facts = {"topic": partition.topic, "partition": partition.partition, "offset": offset}
        line = " ".join(f"{name}: {value}" for name, value in facts.items())
        yield DumpItem(line, facts)


def dump_text(path: str) -> Iterator[DumpItem]:
    """Yield the lines of a text file.

    :raises OSError: the file cannot be read.
    :raises DamagedFileError: the file is no text.
    """
    for line in _text(path).splitlines():
        yield DumpItem(line, {"line": line})


def _text(path: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise DamagedFileError(f"{path}: damaged: it is no text") from e


def dump_metadata_snapshot(path: str) -> Iterator[DumpItem]:
    """Yield the end offset, the voters and the records of a metadata snapshot.

    :raises OSError: the file cannot be read.
    :raises DamagedFileError: the file is damaged or not a snapshot.
    """
    named = SNAPSHOT_FILE.fullmatch(os.path.basename(path))
    if named is not None:
        end, epoch = int(named[1]), int(named[2])
        facts = {"endOffset": end, "epoch": epoch}
        yield DumpItem(f"Snapshot end offset: {end}, epoch: {epoch}", facts)
    vfs, reader = RealVfs(), EntryReader()
    file = vfs.open(path, OpenMode.READ)
    try:
        snapshot = load_snapshot(file, -1, 0)
    finally:
        file.close()
    if snapshot is None:
        raise DamagedFileError(f"{path}: damaged: its head, length or CRC is wrong")
    if voters := snapshot.voters:
        yield DumpItem(f"| voters: {voters.decode()}", {"voters": json.loads(voters)})
    try:
        for position in range(0, snapshot.size_bytes, SNAPSHOT_PIECE_BYTES):
            piece = read_payload(vfs, path, snapshot, position, SNAPSHOT_PIECE_BYTES)
            for record in reader.feed(piece):
                text = metadata_record_text(record)
                yield DumpItem(f"| payload: {text}", {"payload": text})
        reader.end()
    except KraftJbodError as e:
        raise DamagedFileError(f"{path}: {e}") from e
