"""PURE. What becomes of transactions in a compaction pass (KIP-98, KIP-534).

* Records of aborted transactions go, whatever their keys are.
* A marker is needed as long as there are batches that it decides about: it is known to be of no
  more use by a pass that met none. That pass gives it a delete horizon, as tombstones have one, and
  a later pass takes it away.
* The index of aborted transactions keeps an entry as long as the pass met batches of it: whoever
  reads needs both, the entry and the marker, or neither.

A pass goes through all batches from the log's start on, in order; nothing in it is undecided.
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
    """One pass over a log, whose ``aborted`` transactions are given, all that may matter."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._aborted: defaultdict[int, list[AbortedTransaction]] = defaultdict(list)
        for one in sorted(aborted, key=_last_offset):
            self._aborted[one.producer_id].append(one)
        #: Aborted ones of which batches were met.
        self._met: set[AbortedTransaction] = set()
        #: Producers of committed batches since their last marker.
        self._committing: set[int] = set()
        self._kept: list[AbortedTransaction] = []

    def aborted(self, header: BatchHeader) -> AbortedTransaction | None:
        """The aborted transaction that the batch belongs to."""
        known = self._aborted.get(header.producer_id)
        if known is None or not header.is_transactional:
            return None
        at = bisect_left(known, header.last_offset, key=_last_offset)
        if at < len(known) and known[at].first_offset <= header.base_offset:
            return known[at]
        return None

    def met_batch(self, header: BatchHeader) -> bool:
        """A batch with or without records; whether its records go with their transaction."""
        if not header.is_transactional:
            return False
        aborted = self.aborted(header)
        if aborted is None:
            self._committing.add(header.producer_id)
        else:
            self._met.add(aborted)
        return aborted is not None

    def met_marker(self, header: BatchHeader, marker: TransactionMarker | None) -> bool:
        """A control batch; whether nothing is left that it decides about.

        One that says nothing to us, as later versions may write it, is left as it is.
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
        """What the index of the segment that is being written has to hold since the last call."""
        kept, self._kept = self._kept, []
        return kept
