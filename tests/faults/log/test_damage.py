"""Damaged bytes of one log: indexes are rebuilt, and damage is reported and skipped."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import CorruptRecordError, OffsetOutOfRangeError
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    batch,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
)
from tests.faults.vfs_fault import without_cached_reads

NO_LIMIT = 2**62
BATCHES = 24
RECORDS = 3
BODY = bytes(150)
SIZE = len(batch(RECORDS, body=BODY))
#: Several segments with several index entries each.
CONFIG = TopicConfig(segment_bytes=8 * SIZE, index_interval_bytes=2 * SIZE)


async def written(vfs: MemVfs, *, checked: bool = True) -> tuple[LogManager, LogHandle]:
    """Write a log of many batches; with ``checked``, reads never use the page cache."""
    format_dir(vfs, "/d1", 1)
    log_dir = open_dir(without_cached_reads(vfs) if checked else vfs)
    manager = manager_of([log_dir], CONFIG)
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    for i in range(BATCHES):
        data = batch(RECORDS, body=BODY, timestamp=1_000 + i)
        await handle.append_as_leader(data, headers_of(data), 0)
    return manager, handle


async def reloaded(vfs: MemVfs, manager: LogManager) -> LogHandle:
    """Stop the manager cleanly, and load the log again without a scan."""
    await manager.close(1)
    log_dir = open_dir(without_cached_reads(vfs))
    again = manager_of([log_dir], CONFIG)
    await again.load()
    handle = again.get(TP)
    assert handle is not None
    return handle


def files(vfs: MemVfs, suffix: str) -> list[str]:
    return [f"/d1/t-0/{e.name}" for e in vfs.list_dir("/d1/t-0") if e.name.endswith(suffix)]


def segment_of(vfs: MemVfs, number: int) -> tuple[str, int]:
    """Return file and position of the ``number``-th batch."""
    logs = files(vfs, ".log")
    for path in logs:
        count = vfs.open(path, OpenMode.READ).size() // SIZE
        if number < count:
            return path, number * SIZE
        number -= count
    raise AssertionError(number)


def flip(vfs: MemVfs, path: str, position: int, bits: int = 0x40) -> None:
    file = vfs.open(path, OpenMode.READ_WRITE)
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ bits])])


async def read_all(handle: LogHandle) -> list[int]:
    """Return the base offsets of all batches that a client gets if it skips damaged offsets."""
    offset, found = handle.log_start_offset, []
    while offset < handle.log_end_offset:
        try:
            result = await read_log(handle, offset, 5 * SIZE, NO_LIMIT, True)
        except CorruptRecordError as e:
            assert e.offset is not None
            offset += 1
            continue
        headers = headers_of(result.records)
        assert headers[0].base_offset <= offset <= headers[0].last_offset
        found += [header.base_offset for header in headers]
        offset = headers[-1].next_offset
    return found


def all_but(*numbers: int) -> list[int]:
    return [i * RECORDS for i in range(BATCHES) if i not in numbers]


@each_case("number", range(BATCHES))
async def test_read_reports_damage_of_any_batch_once_and_serves_all_others(
    number: int,
) -> None:
    vfs = MemVfs()
    _, handle = await written(vfs)
    path, position = segment_of(vfs, number)
    flip(vfs, path, position + 100)
    with capture_logs() as logged:
        assert await read_all(handle) == all_but(number)
        assert await read_all(handle) == all_but(number)
    assert [line["event"] for line in logged] == ["log_damaged"]
    assert (logged[0]["offset"], logged[0]["partition"]) == (number * RECORDS, "t-0")
    assert handle.damaged_from == number * RECORDS
    assert handle.log_dir.is_online


#: All bytes except the leader epoch, which no other part of a batch confirms.
HEADER_BYTES = [*range(12), *range(16, 61)]


@pytest.mark.parametrize("number", [0, 5, 7])
@each_case("at", HEADER_BYTES)
async def test_read_loses_at_most_an_index_interval_by_a_damaged_header(
    number: int, at: int
) -> None:
    vfs = MemVfs()
    _, handle = await written(vfs)
    path, position = segment_of(vfs, number)
    flip(vfs, path, position + at)
    served = await read_all(handle)
    lost = set(all_but()) - set(served)
    assert number * RECORDS in lost
    # At most the batches between two index entries.
    assert lost <= {(number + i) * RECORDS for i in range(4)}
    assert served == sorted(set(served))


async def test_read_skips_several_damages_in_several_segments() -> None:
    vfs = MemVfs()
    _, handle = await written(vfs)
    for number in (2, 5, 12):
        path, position = segment_of(vfs, number)
        flip(vfs, path, position + 100)
    assert await read_all(handle) == all_but(2, 5, 12)


async def test_read_cached_serves_unchecked_bytes_until_read_checked_finds_damage() -> None:
    vfs = MemVfs()
    _, handle = await written(vfs, checked=False)
    path, position = segment_of(vfs, 3)
    await read_all(handle)
    flip(vfs, path, position + 100)
    assert await read_all(handle) == all_but()
    with pytest.raises(CorruptRecordError):
        await handle.read_checked(3 * RECORDS, SIZE, NO_LIMIT, True)
    # From now on the damage is known to cached reads too.
    assert await read_all(handle) == all_but(3)


@pytest.mark.parametrize("number", [0, 1, 9, 23])
async def test_log_truncated_at_damage_accepts_appends_there(number: int) -> None:
    vfs = MemVfs()
    manager, handle = await written(vfs)
    path, position = segment_of(vfs, number)
    reads = [await read_log(handle, i * RECORDS, 1, NO_LIMIT, True) for i in range(BATCHES)]
    copies = [bytes(read.records) for read in reads]
    flip(vfs, path, position + 16)
    await read_all(handle)
    assert handle.damaged_from == number * RECORDS
    await handle.truncate_to(number * RECORDS)
    assert (handle.damaged_from, handle.log_end_offset) == (None, number * RECORDS)
    for data in copies[number:]:
        await handle.append_as_follower(data)
    assert await read_all(handle) == all_but()
    again = await reloaded(vfs, manager)
    assert await read_all(again) == all_but()


@pytest.mark.parametrize("is_known", [True, False])
async def test_truncate_within_damage_removes_all_of_it(is_known: bool) -> None:
    vfs = MemVfs()
    _, handle = await written(vfs)
    path, position = segment_of(vfs, 10)
    flip(vfs, path, position + 16)
    if is_known:
        await read_all(handle)
    await handle.truncate_to(10 * RECORDS + 1)
    assert handle.log_end_offset == 10 * RECORDS
    assert await read_all(handle) == all_but(*range(10, BATCHES))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["flipped", "short", "zeros", "rubbish"])
async def test_damaged_index_file_is_rebuilt_and_logged(suffix: str, how: str) -> None:
    vfs = MemVfs()
    manager, _ = await written(vfs)
    await manager.close(1)
    path = files(vfs, suffix)[0]
    file = vfs.open(path, OpenMode.READ_WRITE)
    data = bytes(file.read_at(0, file.size()))
    rubbish = {
        "flipped": bytes([data[0] ^ 0x40]) + data[1:],
        "short": data[:-1],
        "zeros": bytes(len(data)),
        "rubbish": bytes(range(255, 255 - len(data), -1)),
    }[how]
    file.truncate(0)
    file.write_at(0, [rubbish])
    log_dir = open_dir(without_cached_reads(vfs))
    again = manager_of([log_dir], CONFIG)
    with capture_logs() as logged:
        await again.load()
        handle = again.get(TP)
        assert handle is not None
        assert await read_all(handle) == all_but()
        found = await handle.offset_for_timestamp(1_005)
    assert found is not None
    assert found.offset == 5 * RECORDS
    assert {line["event"] for line in logged} <= {"log_index_mended"}
    assert logged or suffix == ".timeindex"
    assert log_dir.is_online


@each_case("at", range(8))
@each_case("entry", range(2))
async def test_read_is_correct_with_any_changed_bit_in_an_index_entry(entry: int, at: int) -> None:
    """The entries are still ascending, so the change is not visible before a read uses them."""
    vfs = MemVfs()
    manager, _ = await written(vfs)
    await manager.close(1)
    for bits in (1, 2, 4, 8, 16, 32):
        clone = vfs.crash_clone(0)
        flip(clone, files(clone, ".index")[0], 8 * entry + at, bits)
        log_dir = open_dir(without_cached_reads(clone))
        again = manager_of([log_dir], CONFIG)
        await again.load()
        handle = again.get(TP)
        assert handle is not None
        # From each offset at which a consumer may start.
        for offset in range(BATCHES * RECORDS):
            records = (await read_log(handle, offset, SIZE, NO_LIMIT, True)).records
            assert headers_of(records)[0].base_offset == offset // RECORDS * RECORDS
        assert handle.damaged_from is None


async def test_append_continues_after_damage() -> None:
    vfs = MemVfs()
    _, handle = await written(vfs)
    path, position = segment_of(vfs, BATCHES - 1)
    flip(vfs, path, position + 16)
    await read_all(handle)
    data = batch(RECORDS, body=BODY)
    result = await handle.append_as_leader(data, headers_of(data), 0)
    assert result.base_offset == BATCHES * RECORDS
    assert await read_all(handle) == [*all_but(BATCHES - 1), BATCHES * RECORDS]


async def test_log_with_a_damaged_start_is_loaded_appended_to_and_retained() -> None:
    vfs = MemVfs()
    manager, _ = await written(vfs)
    for path in files(vfs, ".log"):
        flip(vfs, path, 16)
    handle = await reloaded(vfs, manager)
    data = batch(RECORDS, body=BODY)
    await handle.append_as_leader(data, headers_of(data), 0)
    handle.high_watermark = handle.log_end_offset
    await handle.apply_retention()
    served = await read_all(handle)
    assert served[-1] == BATCHES * RECORDS
    assert handle.log_dir.is_online


async def test_load_with_lost_producer_snapshots_and_damage_finds_the_producers() -> None:
    """Producers are recovered from the batches around the damage."""
    vfs = MemVfs()
    manager, handle = await written(vfs)
    data = batch(RECORDS, body=BODY, producer=(7, 0, 0))
    await handle.append_as_leader(data, headers_of(data), 0)
    await manager.close(1)
    for path in files(vfs, ".snapshot"):
        flip(vfs, path, 3)
    path, position = segment_of(vfs, 4)
    flip(vfs, path, position + 16)
    log_dir = open_dir(vfs)
    again = manager_of([log_dir], CONFIG)
    await again.load()
    loaded = again.get(TP)
    assert loaded is not None
    repeated = await loaded.append_as_leader(data, headers_of(data), 0)
    assert repeated.duplicate


async def test_recovery_truncates_a_damaged_follower_and_keeps_the_directory_online() -> None:
    vfs = MemVfs()
    await written(vfs)
    path, position = segment_of(vfs, 10)
    flip(vfs, path, position + 100)
    log_dir = open_dir(vfs)
    manager = manager_of([log_dir], CONFIG)
    with capture_logs() as logged:
        await manager.load()
    handle = manager.get(TP)
    assert handle is not None
    assert handle.log_end_offset == 10 * RECORDS
    assert [line["event"] for line in logged] == ["log_tail_truncated"]
    with pytest.raises(OffsetOutOfRangeError):
        await read_log(handle, 11 * RECORDS, 1, NO_LIMIT, True)
    assert log_dir.is_online
