from __future__ import annotations

from tests.sim.search.applications.transaction_ledger import (
    Outcome,
    TransactionLedger,
    Written,
)


def _read(ledger: TransactionLedger, *records: tuple[Written, int]) -> list[str]:
    findings = (ledger.saw("t", 0, written.value(index)) for written, index in records)
    return [one for one in findings if one]


def test_transaction_ledger_finds_partial_repeated_and_lost_transactions() -> None:
    ledger = TransactionLedger()
    whole, half, unknown, twice, lost = (ledger.begin("p", 2) for _ in range(5))
    for one in (whole, half, twice, lost):
        one.outcome = Outcome.COMMITTED
    unknown.outcome = Outcome.UNKNOWN
    read = [(whole, 0), (whole, 1), (half, 0), (twice, 0), (twice, 1)]
    assert _read(ledger, *read) == []
    assert _read(ledger, (twice, 1)) == ["t-0: p 3 1 comes after (3, 1)"]
    assert ledger.judge() == [
        "transaction 1 of p, committed: 1 of 2 records are missing",
        "transaction 3 of p, committed: read more than once: {0: 1, 1: 2}",
        "transaction 4 of p, committed: nothing of it is read",
    ]
    assert ledger.outcomes == {Outcome.COMMITTED: 4, Outcome.UNKNOWN: 1}


def test_transaction_ledger_finds_dirty_aborted_and_fenced_reads() -> None:
    ledger = TransactionLedger()
    dirty, aborted, fenced = (
        ledger.begin("p", 1),
        ledger.begin("p", 1),
        ledger.begin("p", 1, is_fenced=True),
    )
    aborted.outcome, fenced.outcome = Outcome.ABORTED, Outcome.UNKNOWN
    found = _read(ledger, (dirty, 0), (aborted, 0), (fenced, 0))
    assert [one.partition(" of ")[2] for one in found] == list(map(str, (dirty, aborted, fenced)))
    # A later commit does not justify the earlier read.
    dirty.outcome = Outcome.COMMITTED
    assert [one.partition(": ")[2] for one in ledger.judge()] == ["it is read", "it is read"]
    assert ledger.saw("t", 1, b"q 0 0") == "t-1: q 0 0 was never written"
