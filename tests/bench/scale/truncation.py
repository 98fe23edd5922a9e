"""Cost of truncating one record, by the size of the segment and of its batches.

A follower truncates records after a change of leader. This part opens a generated log in its own
process and counts the bytes that it reads; the time would mostly be that of generating files.
Kafka has no request for this and is not measured.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.bench.figures import Report
from tests.faults.large_log import (
    KIB,
    MIB,
    CountingVfs,
    LargeLog,
    load_large_log,
    put_large_log,
)

_SEGMENTS_MIB: Final = (16, 128, 512, 1024)
_BATCHES_BYTES: Final = (100, KIB, 16 * KIB, MIB)
_PRODUCER: Final = 7


def one_record(report: Report) -> None:
    """Bytes read, with an idempotent producer."""
    for batch_bytes in _BATCHES_BYTES:
        for segment_mib in _SEGMENTS_MIB:
            _truncate(report, segment_mib, batch_bytes)


def _truncate(report: Report, segment_mib: int, batch_bytes: int) -> None:
    shape = LargeLog.of_size(segment_mib * MIB, batch_bytes, producer_id=_PRODUCER)
    inner = MemVfs()
    vfs = CountingVfs(inner)
    log = load_large_log(vfs, put_large_log(inner, "/d1", shape), shape)
    vfs.reset()
    log.truncate_to(shape.end_offset - 1)
    name = f"truncate one record, segment of {segment_mib:,} MiB, batches of {batch_bytes:,} B"
    how = f"{vfs.operation_count:,} file operations; indexes of {shape.index_bytes / KIB:,.0f} KiB"
    report.add(f"{name}: read", vfs.bytes_read / KIB, "KiB", how=how)
