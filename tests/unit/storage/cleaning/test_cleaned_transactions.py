"""Compaction of transactions: aborted records, markers and the transaction index."""

from __future__ import annotations

from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import batches
from kraftjbod.protocol.records import build_batch, read_records
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.log_loader import LogLoader
from kraftjbod.storage.log.verification_guards import ProducerTerms
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.cleaning.compaction_rig import (
    NO_LIMIT,
    NOW_MS,
    compacting_dir,
    compacting_manager,
    flush_and_roll,
    keyed,
)
from tests.faults.rig import TOPIC_ID, TP, ManualClock, format_dir, headers_of
from tests.faults.vfs_fault import FaultVfs
from tests.unit.storage.log.test_open_transactions import read_committed

UNGUARDED = ProducerTerms(is_guarded=False, checks_sequence=False)


async def send(handle: LogHandle, producer_id: int, *pairs: tuple[str, str]) -> None:
    data = build_batch(
        keyed(*pairs),
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=producer_id >= 0,
    )
    await handle.append_as_leader(data, headers_of(data), 0, UNGUARDED)


async def end(handle: LogHandle, producer_id: int, *, commits: bool) -> None:
    marker = TransactionMarker(commits, 0)
    await handle.append_marker(producer_id, 0, marker, transaction_version=0, leader_epoch=0)


async def content(handle: LogHandle) -> list[str]:
    """Return ``key=value`` of each record, and each transaction marker, in offset order."""
    found, offset = [], handle.log_start_offset
    while offset < handle.log_end_offset:
        data = (await handle.read_checked(offset, 4096, NO_LIMIT, True)).records
        for position, header in batches(data):
            for record in read_records(data, position):
                key, value = record.key or b"", record.value or b""
                is_commit = key[-1:] == b"\x01"
                text = (
                    f"{key.decode()}={value.decode()}"
                    if not header.is_control
                    else (f"{'commit' if is_commit else 'abort'} {header.producer_id}")
                )
                found.append(text)
            offset = header.next_offset
    return found


async def test_compaction_drops_aborted_records_before_their_marker_and_index_entry() -> None:
    vfs, clock = MemVfs(), ManualClock(NOW_MS)
    format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)], clock=clock)
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)

    async def compact() -> None:
        await send(handle, -1, ("filler", str(handle.log_end_offset)))
        handle.high_watermark = handle.log_end_offset
        await flush_and_roll(handle)
        while await manager.cleaner.clean_dirtiest(manager.dirs()[0]):
            pass

    await send(handle, -1, ("a", "old"))
    await send(handle, 1, ("a", "aborted"), ("b", "aborted"))
    await send(handle, 2, ("c", "kept"))
    await flush_and_roll(handle)
    await end(handle, 1, commits=False)
    # From here on, the last batch of producer 1 is not the aborted one.
    for number in range(6):
        await send(handle, 1, ("d", str(number)))
    # The transaction of producer 2 is open: nothing from its first offset on may be cleaned.
    await compact()
    assert "a=aborted" in await content(handle)
    await end(handle, 2, commits=True)
    await end(handle, 1, commits=True)
    await send(handle, 2, ("c", "newer"))
    await end(handle, 2, commits=True)
    await compact()
    first = await content(handle)
    assert "a=old" in first and not [one for one in first if "aborted" in one]
    assert "abort 1" in first
    aborted = await handle.aborted_between(0, 5)
    assert [one.producer_id for one in aborted] == [1]
    for seed in range(5):  # After a power failure, the index is as durable as the records.
        loaded = LogLoader(
            vfs=vfs.crash_clone(seed),
            directory=handle.directory,
            topic_partition=TP,
            config=handle.config,
            was_clean=False,
            recovery_point=handle.recovery_point,
        ).load()
        assert loaded.log.aborted_between(0, 5) == aborted
    # No aborted record is left: the index entry is removed, and the marker has a delete horizon.
    await compact()
    assert "abort 1" in await content(handle)
    assert await handle.aborted_between(0, 5) == []
    clock.ms += 5_000
    await compact()
    last = await content(handle)
    assert "abort 1" not in last
    # The marker of a committed transaction stays as long as one of its records.
    assert last.index("d=5") < last.index("commit 1")


async def test_compaction_crash_at_any_operation_exposes_no_aborted_record() -> None:
    disk = MemVfs()
    vfs = FaultVfs(disk)
    format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)])
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    committed = []
    for turn in range(12):
        await send(handle, 1, ("a", f"aborted {turn}"), (f"b{turn % 3}", "aborted"))
        committed.append(handle.log_end_offset)
        await send(handle, 2, ("c", f"kept {turn}"))
        await end(handle, 1, commits=False)
        await end(handle, 2, commits=True)
    handle.high_watermark = handle.log_end_offset
    await flush_and_roll(handle)
    clones: list[MemVfs] = []
    vfs.on_operation = lambda kind, path: clones.append(disk.crash_clone(len(clones)))
    while await manager.cleaner.clean_dirtiest(manager.dirs()[0]):
        pass
    vfs.on_operation = None
    assert len(clones) > 20
    for clone in clones:
        log = (
            LogLoader(
                vfs=clone,
                directory=handle.directory,
                topic_partition=TP,
                config=handle.config,
                was_clean=False,
                recovery_point=handle.recovery_point,
            )
            .load()
            .log
        )
        offset, stable = 0, log.view().log_end_offset
        while offset < stable:
            got, offset = read_committed(log, offset, stable, 300)
            assert set(got) <= set(committed)
