"""``OffsetInvariants``: which answers of ListOffsets a partition's acknowledged records allow.

* An answer without an error names an offset for the earliest and the latest one, never -1.
* The largest timestamp is at least that of each acknowledged record that is left. While the newest
  record is not committed the answer may be -1, as in Kafka, otherwise only if no such record is
  left.
* A search by time names no offset after an acknowledged record that is new enough.
* The latest offset is after each committed record, and never goes back. The earliest offset never
  goes back within one leader epoch, and never before an acknowledged deletion. The next leader may
  start earlier: a deletion without an answer, or retention, may have reached the former one alone.

A replaced leader that does not know its successor may give an earlier answer, as in Kafka. So the
invariants about later records hold for an answer in the newest leader epoch (``is_newest``). The
other invariants hold for all answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.sim.search.ledgers.ledger import Ledger, StampedOffset

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
_NAMES: Final = {
    LATEST: "the latest offset",
    EARLIEST: "the earliest offset",
    MAX_TIMESTAMP: "the offset of the largest timestamp",
    EARLIEST_LOCAL: "the earliest local offset",
}
_STARTS: Final = (EARLIEST, EARLIEST_LOCAL)


class Question(NamedTuple):
    """A partition, identified by the ledger's key of its topic, and the timestamp to search."""

    key: str
    partition: int
    leader_epoch: int
    timestamp: int
    is_committed_only: bool = False

    def __str__(self) -> str:
        asked = _NAMES.get(self.timestamp, f"the first offset since {self.timestamp}")
        level = " (read_committed)" if self.is_committed_only else ""
        return f"{asked} of {self.key}-{self.partition} in epoch {self.leader_epoch}{level}"


class Answer(NamedTuple):
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts about a partition before a question is sent."""

    question: Question
    is_newest: bool
    records: Sequence[StampedOffset]
    """Records that acks=all acknowledged."""
    committed_end: int
    least_start: int
    """The largest log start offset that DeleteRecords acknowledged."""
    earliest: int
    """The largest earliest offset that was answered in the same leader epoch."""
    latest: int
    """The largest earliest or latest offset that was answered."""

    @property
    def needs_start(self) -> bool:
        """Whether :meth:`OffsetInvariants.judge` needs the log start, which the asker asks next."""
        return bool(self.records) and self.question.timestamp not in (LATEST, *_STARTS)


class OffsetInvariants:
    """Call :meth:`before` when a question is sent, and :meth:`judge` with its answer."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        #: By topic, partition and leader epoch: the largest earliest offset that was answered.
        self._earliest: defaultdict[tuple[str, int, int], int] = defaultdict(int)
        #: By topic, partition and isolation: the largest earliest or latest offset.
        self._latest: defaultdict[tuple[str, int, bool], int] = defaultdict(int)

    def before(self, question: Question, *, is_newest: bool) -> Known:
        """:param is_newest: no leader has a later epoch than ``question`` names."""
        key, partition, epoch, _, is_committed_only = question
        return Known(
            question=question,
            is_newest=is_newest,
            records=self._ledger.acknowledged(key, partition),
            committed_end=self._ledger.committed_end(key, partition),
            least_start=self._ledger.starts.get((key, partition), 0),
            earliest=self._earliest[key, partition, epoch],
            latest=self._latest[key, partition, is_committed_only],
        )

    def judge(
        self,
        known: Known,
        answer: Answer,
        start: int | None = None,
        *,
        is_settled: bool = True,
    ) -> str:
        """Return the violation or an empty text.

        :param is_settled: the leader had no uncommitted record from the question to the answer.
        :param start: a log start offset in the same leader epoch at the time of the answer or
            later, for questions that need it; None if it is unknown.
        """
        if known.question.timestamp == MAX_TIMESTAMP and answer.offset < 0 and not is_settled:
            return ""
        wrong = self._wrong(known, answer, start)
        return f"ListOffsets answered {answer.offset} for {known.question}: {wrong}" * bool(wrong)

    def _wrong(self, known: Known, answer: Answer, start: int | None) -> str:
        question = known.question
        if question.timestamp in _STARTS:
            return self._wrong_earliest(known, answer.offset)
        if question.timestamp == LATEST:
            return self._wrong_latest(known, answer.offset)
        if start is None:
            return ""
        present = [one for one in known.records if one.offset >= start]
        if question.timestamp == MAX_TIMESTAMP:
            return _wrong_max_timestamp(known, answer, present)
        return _wrong_by_time(known, answer, present)

    def _wrong_earliest(self, known: Known, offset: int) -> str:
        key, partition, epoch, *_ = known.question
        if offset < 0:
            return "a log always has a start"
        most = self._ledger.may_start(key, partition)
        if offset > most:
            return f"no DeleteRecords request named more than {most}"
        for is_committed_only in (False, True):
            before = self._latest[key, partition, is_committed_only]
            self._latest[key, partition, is_committed_only] = max(before, offset)
        self._earliest[key, partition, epoch] = max(self._earliest[key, partition, epoch], offset)
        if offset < known.earliest:
            return f"{known.earliest} was answered before"
        if known.is_newest and offset < known.least_start:
            return f"the deletion up to {known.least_start} was acknowledged"
        return ""

    def _wrong_latest(self, known: Known, offset: int) -> str:
        key, partition, _, _, is_committed_only = known.question
        if offset < 0:
            return "a log always has an end"
        before = self._latest[key, partition, is_committed_only]
        self._latest[key, partition, is_committed_only] = max(before, offset)
        if not known.is_newest:
            return ""
        if offset < known.latest:
            return f"{known.latest} was answered before, as earliest or latest"
        if offset < known.committed_end:
            return f"records up to {known.committed_end} are committed"
        return ""


def _wrong_max_timestamp(known: Known, answer: Answer, present: Sequence[StampedOffset]) -> str:
    if not known.is_newest or not present:
        return ""
    newest = max(present, key=lambda one: one.stamped_ms)
    if answer.offset < 0:
        return f"the record at {newest.offset} was acknowledged and not deleted"
    if answer.timestamp < newest.stamped_ms:
        return (
            f"its timestamp is {answer.timestamp}, and the acknowledged record at "
            f"{newest.offset} has {newest.stamped_ms}"
        )
    return ""


def _wrong_by_time(known: Known, answer: Answer, present: Sequence[StampedOffset]) -> str:
    wanted = known.question.timestamp
    if answer.offset < 0 and not known.is_newest:
        return ""
    if answer.offset >= 0 and answer.timestamp < wanted:
        return f"its timestamp is {answer.timestamp}"
    matching = [one for one in present if one.stamped_ms >= wanted]
    first = min(matching, key=lambda one: one.offset, default=None)
    if first is None or 0 <= answer.offset <= first.offset:
        return ""
    return f"the acknowledged record at {first.offset} has timestamp {first.stamped_ms}"
