"""DISK. ``ProducerRecovery``: rebuilds producer state and transaction indexes during recovery.

Recovery passes each run of sound batches once, so no batch is read a second time.

* Transaction indexes are rebuilt from the newest snapshot at or before the first segment of the
  walk. Without such a snapshot they are rebuilt from the remaining batches alone.
* Without such a snapshot the log's producer state starts with the newest later snapshot, because
  that one includes batches that were deleted from the log.
"""

from __future__ import annotations

from bisect import bisect_right

from kraftjbod.protocol.control_records import read_marker
from kraftjbod.protocol.record_batch import BatchHeader, read_header
from kraftjbod.protocol.record_scans import latest_of_producers
from kraftjbod.storage.log.producer_snapshots import LoadedProducers, ProducerSnapshots
from kraftjbod.storage.log.producer_state import BATCHES_KEPT, ProducerLimits
from kraftjbod.storage.segments.batch_runs import SoundRun
from kraftjbod.storage.segments.transaction_index import AbortedTransaction, TransactionIndex


class ProducerRecovery:
    """Rebuilds the producer state and the transaction indexes while recovery reads a log from a
    segment's start to its end.

    Pass each run of sound batches to :meth:`take_run` once, and call :meth:`take_transactions`
    after each segment. At the end call :meth:`loaded`.
    """

    def __init__(
        self,
        snapshots: ProducerSnapshots,
        loaded: LoadedProducers,
        begin: int,
        limits: ProducerLimits,
    ) -> None:
        """:param loaded: the producers at ``begin``, the start of the walk."""
        self._snapshots = snapshots
        self._limits = limits
        #: State of the remaining batches, from which the transaction indexes are rebuilt.
        self._state = loaded.state
        #: The same object, or the state of a later snapshot.
        self._known = loaded.state
        self._replayed_bytes = loaded.replayed_bytes
        offsets = snapshots.offsets
        #: Offsets of snapshots that the walk has not passed yet, in ascending order.
        self._later: list[int] = []
        if not loaded.is_from_snapshot:
            self._later = list(offsets[bisect_right(offsets, begin) :])
        self._aborted: list[AbortedTransaction] = []

    def take_run(self, run: SoundRun) -> None:
        """Apply the batches of ``run`` to the producer state."""
        applied = 0
        for at in self._needed(run, run.scan.producers):
            header = read_header(run.data, at)
            if self._load_snapshots_up_to(header.last_offset):
                applied = at
            self._record(run, at, header)
        if self._load_snapshots_up_to(run.next_offset):
            applied = run.size_bytes
        self._replayed_bytes += run.size_bytes - applied

    def take_transactions(self) -> TransactionIndex:
        """Return the transaction index of the segment that was walked, and start that of the next
        segment.
        """
        aborted, self._aborted = self._aborted, []
        return TransactionIndex(aborted)

    def loaded(self) -> LoadedProducers:
        """Return the producer state after the last run."""
        return LoadedProducers(self._known, self._replayed_bytes, is_from_snapshot=True)

    def _needed(self, run: SoundRun, positions: list[int]) -> list[int]:
        """Return ``positions`` without batches that later batches of the same producer make
        irrelevant.

        If there may be too many producers, all are returned, because each batch affects which
        producers are forgotten.
        """
        most = max(len(self._state), len(self._known)) + len(positions)
        if most > self._limits.max_producers:
            return positions
        return latest_of_producers(run.data, positions, BATCHES_KEPT)

    def _record(self, run: SoundRun, at: int, header: BatchHeader) -> None:
        marker = read_marker(run.data, at, header) if header.is_control else None
        offset, limits = header.base_offset, self._limits
        aborted = self._state.record(header, offset, limits=limits, marker=marker)
        if aborted is not None:
            self._aborted.append(aborted)
        if self._known is not self._state:
            self._known.record(header, offset, limits=limits, marker=marker)

    def _load_snapshots_up_to(self, offset: int) -> bool:
        """Load the sound snapshots up to ``offset``.

        Return whether one of them replaced the state.
        """
        is_another = False
        while self._later and self._later[0] <= offset:
            found = self._snapshots.sound_at(self._later.pop(0))
            if found is not None:
                self._known, self._replayed_bytes, is_another = found, 0, True
        return is_another
