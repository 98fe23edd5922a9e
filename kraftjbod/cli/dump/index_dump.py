"""WIRE. Prints entries of index files as Kafka's tool does, and compares them with the log."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from kraftjbod.cli.dump.segment_dump import DamagedFileError, DumpItem, FoundBatch, find_batches
from kraftjbod.storage.dir_names import LOG_SUFFIX
from kraftjbod.storage.segments.offset_index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kraftjbod.storage.segments.transaction_index import ENTRY_BYTES, TransactionIndex

_OFFSET_ENTRY: Final = struct.Struct(">II")
_TIME_ENTRY: Final = struct.Struct(">qI")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStyle:
    """The parts of an index to print."""

    verify_only: bool = False
    """Print only the entries that do not match the log."""
    sanity_only: bool = False
    """Print only whether the file can be an index."""


def dump_offset_index(path: str, style: IndexStyle) -> Iterator[DumpItem]:
    """Yield the entries of an offset index, and those that do not match its log.

    :raises OSError: the index or its log cannot be read.
    :raises DamagedFileError: the file cannot be an index.
    """
    base, data = _base_offset(path), _read(path, OFFSET_ENTRY_BYTES)
    entries = [(base + offset, at) for offset, at in _OFFSET_ENTRY.iter_unpack(data)]
    if not entries:
        yield _empty(path)
        return
    if style.sanity_only:
        yield _sane(path, _rises(entries))
        return
    mismatches: list[tuple[int, int]] = []
    with open(_log_path(path), "rb") as log:
        for number, (offset, position) in enumerate(entries):
            if number and offset == base:
                # Kafka allocates an index in use at full size, and fills it later.
                break
            batch = next(find_batches(log, position), None)
            found = -1 if batch is None else batch.header.last_offset
            if found != offset:
                mismatches.append((offset, found))
            if not style.verify_only:
                facts = {"offset": offset, "position": position}
                yield DumpItem(f"offset: {offset} position: {position}", facts)
    if mismatches:
        yield _problem(f"Mismatches in :{os.path.abspath(path)}")
        for indexed, found in mismatches:
            facts = {"indexOffset": indexed, "logOffset": found}
            yield _problem(f"  Index offset: {indexed}, log offset: {found}", facts)


def dump_time_index(path: str, style: IndexStyle) -> Iterator[DumpItem]:
    """Yield the entries of a time index, and those that do not match its log.

    :raises OSError: the index or its log cannot be read.
    :raises DamagedFileError: the file cannot be an index.
    """
    base, data = _base_offset(path), _read(path, TIME_ENTRY_BYTES)
    entries = [(time, base + offset) for time, offset in _TIME_ENTRY.iter_unpack(data)]
    if style.sanity_only:
        yield _sane(path, _rises(entries, may_repeat=True))
        return
    with open(_log_path(path), "rb") as log:
        batches = {batch.header.last_offset: batch for batch in _headers(log)}
    problems: list[DumpItem] = []
    before = -1
    for number, (timestamp, offset) in enumerate(entries):
        if number and offset == base:
            break
        problems += _time_problems(timestamp, offset, batches.get(offset), before)
        if not style.verify_only:
            facts = {"timestamp": timestamp, "offset": offset}
            yield DumpItem(f"timestamp: {timestamp} offset: {offset}", facts)
        before = timestamp
    yield from problems


def _headers(log: BinaryIO) -> Iterator[FoundBatch]:
    """Yield the batches of a log without their data, to save memory."""
    for batch in find_batches(log):
        yield batch._replace(data=b"")


def _time_problems(
    timestamp: int, offset: int, batch: FoundBatch | None, before: int
) -> Iterator[DumpItem]:
    if batch is None:
        yield _problem("The following indexed offsets are not found in the log.")
        yield _problem(f"Indexed offset: {offset}", {"indexedOffset": offset})
        return
    found = batch.header.max_timestamp
    if found != timestamp:
        text = f"Index timestamp: {timestamp}, log timestamp: {found}"
        yield _problem(text, {"indexTimestamp": timestamp, "logTimestamp": found})
    if before >= timestamp:
        text = f"Index timestamp: {timestamp}, Previously indexed timestamp: {before}"
        yield _problem(text, {"indexTimestamp": timestamp, "previousTimestamp": before})


def dump_transaction_index(path: str) -> Iterator[DumpItem]:
    """Yield the entries of a transaction index.

    :raises OSError: the index cannot be read.
    :raises DamagedFileError: the file cannot be an index.
    """
    index = TransactionIndex.from_bytes(_base_offset(path), _read(path, ENTRY_BYTES))
    if index is None:
        raise DamagedFileError(f"{path}: its entries cannot be those of an index")
    for one in index.entries:
        facts = {
            "version": 0,
            "producerId": one.producer_id,
            "firstOffset": one.first_offset,
            "lastOffset": one.last_offset,
            "lastStableOffset": one.last_stable_offset,
        }
        yield DumpItem(" ".join(f"{name}: {value}" for name, value in facts.items()), facts)


def _base_offset(path: str) -> int:
    name = os.path.basename(path).split(".")[0]
    if not name.isdecimal():
        raise DamagedFileError(f"{path}: its name does not begin with an offset")
    return int(name)


def _log_path(path: str) -> str:
    return os.path.join(os.path.dirname(path), os.path.basename(path).split(".")[0] + LOG_SUFFIX)


def _read(path: str, entry_bytes: int) -> bytes:
    with open(path, "rb") as file:
        data = file.read()
    if len(data) % entry_bytes:
        raise DamagedFileError(f"{path}: {len(data)} bytes are no multiple of {entry_bytes}")
    return data


def _rises(entries: list[tuple[int, int]], *, may_repeat: bool = False) -> bool:
    pairs = list(itertools.pairwise(entries))
    if may_repeat:
        return all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairs)
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairs)


def _sane(path: str, is_sane: bool) -> DumpItem:
    text = f"{path} passed sanity check." if is_sane else f"{path}: its entries do not rise"
    return DumpItem(text, {"sane": is_sane}, is_problem=not is_sane)


def _empty(path: str) -> DumpItem:
    return DumpItem(f"{path} is empty.", {"empty": True})


def _problem(text: str, facts: dict[str, int] | None = None) -> DumpItem:
    return DumpItem(text, facts or {}, is_problem=True)
