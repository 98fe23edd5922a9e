"""Read entries and snapshots from a controller's metadata disk, without virtual time.

For checks from outside the cluster: the functions open no file of the simulated process, take no
lock, and meet no simulated disk fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.metadata.record_codec import EntryReader
from kraftjbod.metadata.records import Record
from kraftjbod.raft.log.entry_batch import StoredEntry, decode_entry_batch
from kraftjbod.raft.log.snapshot_files import (
    SNAPSHOT_FILE,
    SNAPSHOT_PIECE_BYTES,
    Snapshot,
    load_snapshot,
    read_payload,
)
from kraftjbod.raft.machine.messages import Entry, EntryKind
from kraftjbod.storage.dir_names import CLUSTER_METADATA_DIR
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.simulated_disk import SimulatedDisk

_LOG_FILE: Final = re.compile(r"(\d{20})\.log")


class EntryPlace(NamedTuple):
    """An entry in a segment file."""

    path: str
    position: int
    stored: StoredEntry


def stored_entries(disk: SimulatedDisk, first: int, last: int) -> Iterator[Entry]:
    """Yield the entries from offset ``first`` to ``last`` that the log segments hold.

    A segment is read up to its first entry that is damaged or unfinished.
    """
    bases = _bases(disk)
    for base, next_base in zip_longest(bases, bases[1:], fillvalue=last + 1):
        if base > last or next_base <= first:
            continue
        path = _segment_path(disk, base)
        for place in _places(path, base, disk.vfs.read_if_exists(path) or b""):
            if first <= place.stored.entry.offset <= last:
                yield place.stored.entry


def durable_entries(disk: SimulatedDisk) -> list[EntryPlace]:
    """Return the entries that a power cut leaves, up to the first gap or damaged entry."""
    found: list[EntryPlace] = []
    for base in _bases(disk):
        if found and base != found[-1].stored.entry.offset + 1:
            break
        path = _segment_path(disk, base)
        found += _places(path, base, disk.vfs.open(path, OpenMode.READ).synced)
    return found


def names_voters(disk: SimulatedDisk) -> bool:
    """Return whether an entry that :func:`durable_entries` returns, or an intact snapshot, has a
    voter set.
    """
    if any(place.stored.entry.kind is EntryKind.VOTERS for place in durable_entries(disk)):
        return True
    directory = f"{disk.path}/{CLUSTER_METADATA_DIR}"
    for item in disk.vfs.list_dir(directory):
        if found := SNAPSHOT_FILE.fullmatch(item.name):
            file = disk.vfs.open(f"{directory}/{item.name}", OpenMode.READ)
            snapshot = load_snapshot(file, int(found[1]), int(found[2]))
            if snapshot is not None and snapshot.voters:
                return True
    return False


def segment_paths(disk: SimulatedDisk) -> list[str]:
    """Return the paths of the log segments, oldest first."""
    return [_segment_path(disk, base) for base in _bases(disk)]


def _bases(disk: SimulatedDisk) -> list[int]:
    directory = f"{disk.path}/{CLUSTER_METADATA_DIR}"
    if not disk.vfs.is_dir(directory):
        return []
    names = [entry.name for entry in disk.vfs.list_dir(directory)]
    return sorted(int(found[1]) for name in names if (found := _LOG_FILE.fullmatch(name)))


def _segment_path(disk: SimulatedDisk, base: int) -> str:
    return f"{disk.path}/{CLUSTER_METADATA_DIR}/{base:020d}.log"


def _places(path: str, base: int, data: bytes) -> Iterator[EntryPlace]:
    """Yield the entries of one segment up to the first that is damaged or unfinished."""
    position, offset = 0, base
    while position < len(data):
        try:
            stored = decode_entry_batch(data, position, offset)
        except CorruptRecordError:
            return
        yield EntryPlace(path, position, stored)
        position, offset = position + stored.size_bytes, offset + 1


def snapshot_records(disk: SimulatedDisk, snapshot: Snapshot) -> list[Record] | None:
    """Return the records of a snapshot, or None if its file is gone or damaged."""
    path = f"{disk.path}/{CLUSTER_METADATA_DIR}/{snapshot.file_name}"
    file = disk.vfs.open_if_exists(path)
    if file is None or load_snapshot(file, snapshot.last_offset, snapshot.term) is None:
        return None
    reader, records, position = EntryReader(), list[Record](), 0
    while piece := read_payload(disk.vfs, path, snapshot, position, SNAPSHOT_PIECE_BYTES):
        records += reader.feed(piece)
        position += len(piece)
    reader.end()
    return records
