"""PURE. Walking over the sound batches of one segment in runs of about :data:`RUN_BYTES`.

batch_walk.py has the rules for a sound batch, and walks batch by batch. A run costs only a few
Python calls, and no object for a batch without a producer id: ``BatchScan``
(protocol/byte_scans.py) is compiled if possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kraftjbod.protocol.record_scans import BatchScan
from kraftjbod.storage.segments.batch_walk import OnProgress, ReadAt

#: About a few milliseconds of a thread that holds the interpreter lock.
RUN_BYTES: Final = 512 * 1024


class SoundRun(NamedTuple):
    """Consecutive sound batches: the first ``size_bytes`` of ``data``.

    ``position`` is the position of ``data`` in the file.
    """

    position: int
    data: bytes
    size_bytes: int
    #: Lists the content of the run. Valid until the next run is read.
    scan: BatchScan

    @property
    def end(self) -> int:
        """Position of the next batch in the file."""
        return self.position + self.size_bytes

    @property
    def next_offset(self) -> int:
        """Offset after the last batch. Valid until the next run is read."""
        return self.scan.next_offset


def sound_runs(
    read_at: ReadAt,
    scan: BatchScan,
    *,
    position: int,
    end: int,
    on_progress: OnProgress,
    run_bytes: int = RUN_BYTES,
) -> Iterator[SoundRun]:
    """Yield runs of batches from ``position`` on, until the first batch that is not sound or
    extends beyond ``end``.

    :param scan: checks the batches; it expects the first one at ``position``.
    :param on_progress: called after each read with the size of its sound batches in bytes.
    """
    want = run_bytes
    while position < end:
        asked = min(want, end - position)
        found = read_at(position, asked)
        assert found is not None, "only readers that may wait walk"
        data = bytes(found)
        size_bytes = scan.take(data)
        if size_bytes:
            yield SoundRun(position, data, size_bytes, scan)
        on_progress(size_bytes)
        position += size_bytes
        is_short = len(data) < asked
        if scan.is_over or is_short or not (size_bytes or scan.torn_bytes):
            return
        if scan.torn_bytes > end - position:
            return  # The segment ends inside this batch.
        want = max(run_bytes, scan.torn_bytes)
