"""DescribeTransactions and ListTransactions."""

from __future__ import annotations

from typing import Any

from kraftjbod.broker.transactions.transaction_records import TransactionState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import DescribeTransactionsRequest, ListTransactionsRequest
from tests.unit.broker.transactions.transaction_rig import (
    ID,
    Partitions,
    adding,
    init,
    marked_by,
)

E = ErrorCode
S = TransactionState


async def test_transactions_are_listed_and_described(partitions: Partitions) -> None:
    async with marked_by(partitions) as rig:
        producer = await init(rig)
        await adding(rig, producer, 0, 1)
        asked = DescribeTransactionsRequest(transactional_ids=[ID, "", "gone"])
        known, unnamed, gone = (await rig.ask(asked)).transaction_states
        assert (unnamed.error_code, gone.error_code) == (42, E.TRANSACTIONAL_ID_NOT_FOUND)
        assert (known.transaction_state, known.producer_id, known.producer_epoch) == (
            "Ongoing",
            *producer,
        )
        assert [(one.topic, list(one.partitions)) for one in known.topics] == [("t", [0, 1])]

        async def listed(**filters: Any) -> list[str]:
            answered = await rig.ask(ListTransactionsRequest(**filters))
            return [one.transactional_id for one in answered.transaction_states]

        assert await listed() == [ID]
        assert await listed(state_filters=["Ongoing"], producer_id_filters=[5_000]) == [ID]
        assert await listed(state_filters=["Empty"]) == await listed(duration_filter=60_000) == []
        pattern = "transactional_id_pattern"
        assert await listed(**{pattern: f"{ID[0]}.*"}) == await listed(**{pattern: ""}) == [ID]
        # The pattern must match the whole name.
        assert await listed(**{pattern: f"{ID}.+"}) == []
        wrong = await rig.ask(ListTransactionsRequest(transactional_id_pattern="("))
        assert wrong.error_code == E.INVALID_REGULAR_EXPRESSION
        odd = await rig.ask(ListTransactionsRequest(state_filters=["ongoing"]))
        assert odd.unknown_state_filters == ["ongoing"] and not odd.transaction_states
