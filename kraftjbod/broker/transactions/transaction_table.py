"""PURE. ``TransactionTable``: the transactions of one partition of ``__transaction_state``, and
their numbers by state.

The numbers are changed with each transaction, so that reading them costs the same for any number of
transactional ids. Events of the transactions must therefore pass through the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kraftjbod.broker.transactions.transaction import Transaction
from kraftjbod.broker.transactions.transaction_events import TransactionAction, TransactionEvent
from kraftjbod.broker.transactions.transaction_records import TransactionState


class TransactionTable:
    def __init__(self, transactions: Iterable[Transaction] = ()) -> None:
        #: By transactional id.
        self._transactions: dict[str, Transaction] = {}
        self._counts: Counter[TransactionState] = Counter()
        for one in transactions:
            self.add(one)

    def __len__(self) -> int:
        return len(self._transactions)

    def get(self, transactional_id: str) -> Transaction | None:
        return self._transactions.get(transactional_id)

    def all(self) -> list[Transaction]:
        """Return all transactions, in a copy that later changes of the table do not affect."""
        return list(self._transactions.values())

    def count(self, *states: TransactionState) -> int:
        """Return the number of transactions in one of ``states``. Cost: O(1)."""
        return sum(self._counts[state] for state in states)

    def add(self, transaction: Transaction) -> None:
        """Add a transaction whose id is not in the table."""
        assert transaction.transactional_id not in self._transactions, transaction
        self._transactions[transaction.transactional_id] = transaction
        self._counts[transaction.state] += 1

    def remove(self, transaction: Transaction) -> None:
        """Remove the transaction, unless another one has its id by now."""
        if self._has(transaction):
            del self._transactions[transaction.transactional_id]
            self._counts[transaction.state] -= 1

    def handle(
        self, transaction: Transaction, event: TransactionEvent, now_ms: int
    ) -> list[TransactionAction]:
        """Pass ``event`` to the transaction and return its actions. ``now_ms`` is wall-clock time.

        The transaction may have been removed from the table.
        """
        before = transaction.state
        actions = transaction.handle(event, now_ms)
        if transaction.state is not before and self._has(transaction):
            self._counts[before] -= 1
            self._counts[transaction.state] += 1
        return actions

    def _has(self, transaction: Transaction) -> bool:
        return self._transactions.get(transaction.transactional_id) is transaction
