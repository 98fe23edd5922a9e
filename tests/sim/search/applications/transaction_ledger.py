"""``TransactionLedger``: the outcomes of transactions, and what may be read.

A record's value names its producer, its transaction and its position there. A consumer of committed
records reads a transaction completely or not at all, once, in the order of writing:

* no record of a transaction whose commit was never requested, not even temporarily;
* no record of a transaction that a producer began after a successor fenced it;
* all records if the commit was acknowledged, all or none if it had no answer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a transaction as its producer knows it."""

    OPEN = "not asked to be committed"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "asked to be committed"


@dataclass(slots=True)
class Written:
    """One transaction: its number of records, and its outcome."""

    producer: str
    number: int
    records: int
    is_fenced: bool = False
    """It was started after another producer had taken over."""
    outcome: Outcome = Outcome.OPEN
    times: Counter[int] = field(default_factory=Counter)
    """How often each of its records was read."""

    def __str__(self) -> str:
        fenced = ", of a fenced producer" if self.is_fenced else ""
        return f"transaction {self.number} of {self.producer}, {self.outcome}{fenced}"

    def value(self, index: int) -> bytes:
        return f"{self.producer} {self.number} {index}".encode()

    @property
    def may_be_read(self) -> bool:
        return not self.is_fenced and self.outcome in (Outcome.COMMITTED, Outcome.UNKNOWN)

    def problem(self) -> str | None:
        """Return the violation in the records that were read, once everything was read."""
        if any(times > 1 for times in self.times.values()):
            return f"read more than once: {dict(self.times)}"
        if self.times and not self.may_be_read:
            return "it is read"
        missing = self.records - len(self.times)
        if missing and self.times:
            return f"{missing} of {self.records} records are missing"
        if self.outcome is Outcome.COMMITTED and missing:
            return "nothing of it is read"
        return None


class TransactionLedger:
    """All transactions by their producers, and the records that were read."""

    def __init__(self) -> None:
        self._written: defaultdict[str, list[Written]] = defaultdict(list)
        self._last: dict[tuple[int, str], tuple[int, int]] = {}

    def begin(self, producer: str, records: int, *, is_fenced: bool = False) -> Written:
        """:param producer: a name without spaces."""
        mine = self._written[producer]
        mine.append(Written(producer, len(mine), records, is_fenced))
        return mine[-1]

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Return the number of transactions by outcome."""
        return Counter(one.outcome for mine in self._written.values() for one in mine)

    def saw(self, where: str, partition: int, value: bytes) -> str:
        """Note a record that a reader of committed records read; return the violation or ""."""
        producer, number, index = value.decode().split()
        here = int(number), int(index)
        mine = self._written[producer]
        if here[0] >= len(mine):
            return f"{where}-{partition}: {value.decode()} was never written"
        transaction = mine[here[0]]
        transaction.times[here[1]] += 1
        before = self._last.get((partition, producer), (-1, -1))
        self._last[partition, producer] = here
        if not transaction.may_be_read:
            return f"{where}-{partition}: record {here[1]} is read of {transaction}"
        if before >= here:
            return f"{where}-{partition}: {value.decode()} comes after {before}"
        return ""

    def judge(self) -> list[str]:
        """Return the violations once everything was read; one sentence each."""
        return [
            f"{transaction}: {problem}"
            for mine in self._written.values()
            for transaction in mine
            if (problem := transaction.problem()) is not None
        ]
