"""PURE. Walking over the batches of one segment in runs: a piece of the file at a time.

The rules for a sound batch are those of batch_walk.py, which walks batch by batch. A run costs a
few Python calls for each piece of :data:`RUN_BYTES` and no object for a batch without a producer
id: ``BatchScan`` (protocol/byte_scans.py) is compiled where that is possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kraftjbod.protocol.record_scans import BatchScan
from kraftjbod.storage.segments.batch_walk import OnProgress, ReadAt

#: A few milliseconds of one thread that does not release the interpreter.
RUN_BYTES: Final = 512 * 1024


class SoundRun(NamedTuple):
    """Sound batches that follow one another.

    They are the first ``size_bytes`` of ``data``, which begins in its file at ``position``.
    """

    position: int
    data: bytes
    size_bytes: int
    #: Lists what is in the run, until the next one is read.
    scan: BatchScan

    @property
    def end(self) -> int:
        """Where the next batch begins in the file."""
        return self.position + self.size_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last batch, until the next run is read."""
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
    """Yield the batches from ``position`` up to the first that is not sound, or to ``end``.

    ``on_progress`` is called for each read, with the size of the run.
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
