"""PURE. ``CleanedTransactions``: how a compaction pass treats transactions (KIP-98, KIP-534).

* Records of aborted transactions are removed, regardless of their keys.
* A marker is needed while batches of its transaction exist. A pass that meets none of them gives
  the marker a delete horizon, like that of a tombstone. A later pass removes the marker.
* The index of aborted transactions keeps an entry while the pass meets batches of the transaction.
  Consumers need either both entry and marker, or neither.

A pass goes through all batches from the log start, in order, and all their transactions have ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.segments.transaction_index import AbortedTransaction

_last_offset = attrgetter("last_offset")


class CleanedTransactions:
    """Decides during one compaction pass which transactional batches, markers and index entries of
    a log are kept.

    Pass all batches and markers from the log start in order. All their transactions have ended.

    :param aborted: all aborted transactions of the log.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._aborted: defaultdict[int, list[AbortedTransaction]] = defaultdict(list)
        for one in sorted(aborted, key=_last_offset):
            self._aborted[one.producer_id].append(one)
        #: Aborted transactions with at least one batch in the pass so far.
        self._met: set[AbortedTransaction] = set()
        #: Producers with committed batches since their last marker.
        self._committing: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def aborted(self, header: BatchHeader) -> AbortedTransaction | None:
        """Return the aborted transaction that the batch belongs to; None if it belongs to none."""
        known = self._aborted.get(header.producer_id)
        if known is None or not header.is_transactional:
            return None
        at = bisect_left(known, header.last_offset, key=_last_offset)
        if at < len(known) and known[at].first_offset <= header.base_offset:
            return known[at]
        return None

    def met_batch(self, header: BatchHeader) -> bool:
        """Record that the pass met a batch of records.

        Return whether its transaction was aborted.
        """
        if not header.is_transactional:
            return False
        aborted = self.aborted(header)
        if aborted is None:
            self._committing.add(header.producer_id)
        else:
            self._met.add(aborted)
        return aborted is not None

    def met_marker(self, header: BatchHeader, marker: TransactionMarker | None) -> bool:
        """Record that the pass reached a control batch. Return whether the pass met no batch of its
        transaction.

        A batch that this pass removes counts as met, so a later pass removes the marker.

        :param marker: None for an unknown version or type. Returns True then only if the control
            batch is empty.
        """
        if marker is None:
            return header.record_count == 0
        if marker.is_commit:
            has_batches = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not has_batches
        aborted = self.aborted(header)
        if aborted is None or aborted not in self._met:
            return True
        self._kept.append(aborted)
        return False

    def take_kept(self) -> list[AbortedTransaction]:
        """Return the transaction index entries for the segment being written, collected since the
        last call.
        """
        kept, self._kept = self._kept, []
        return kept
