"""``TransactionTable``: transactions by id, and their numbers by state."""

from __future__ import annotations

from kraftjbod.broker.transactions.transaction import Transaction
from kraftjbod.broker.transactions.transaction_events import AddRequested, Written
from kraftjbod.broker.transactions.transaction_records import TransactionMetadata, TransactionState
from kraftjbod.broker.transactions.transaction_table import TransactionTable
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING


def new(transactional_id: str = "x") -> Transaction:
    return Transaction(
        transactional_id, TransactionMetadata(producer_id=1, producer_epoch=0, timeout_ms=9)
    )


def open_transaction(table: TransactionTable, transaction: Transaction) -> None:
    request = AddRequested(
        token=object(),
        producer_id=1,
        producer_epoch=0,
        partitions=frozenset({TopicPartition("t", 0)}),
        version=0,
    )
    table.handle(transaction, request, 1)
    table.handle(transaction, Written(ErrorCode.NONE), 1)
    assert transaction.state is ONGOING


def test_transaction_table_counts_transactions_by_their_present_state() -> None:
    one, two = new("x"), new("y")
    table = TransactionTable([one, two])
    assert (table.count(EMPTY), table.count(ONGOING)) == (2, 0)
    open_transaction(table, one)
    assert (table.count(EMPTY), table.count(ONGOING), table.count(EMPTY, ONGOING)) == (1, 1, 2)
    table.remove(one)
    assert (table.count(EMPTY), table.count(ONGOING), table.all()) == (1, 0, [two])


def test_transaction_table_ignores_events_of_a_replaced_transaction() -> None:
    """The result of its last write arrives when another transaction has its id."""
    former = new()
    table = TransactionTable([former])
    table.remove(former)
    successor = new()
    table.add(successor)
    open_transaction(table, former)
    table.remove(former)
    assert table.get("x") is successor and len(table) == 1
    assert (table.count(EMPTY), table.count(ONGOING)) == (1, 0)
