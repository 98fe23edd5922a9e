"""Errors of transaction requests; ``transactions/test_transactions_tool.py`` has the other
tests."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.transaction_admin import abort_at, list_transactions
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from tests.unit.cli.test_transactions_tool import coordinator


async def test_transaction_requests_raise_errors_of_the_broker() -> None:
    async with coordinator() as broker, ClusterClient(broker.address) as client:
        await client.refresh_metadata(["t"])
        broker.fail_next["ListTransactions"] = [ErrorCode.INVALID_REGULAR_EXPRESSION]
        with pytest.raises(OperatingError) as caught:
            await list_transactions(client, pattern="(")
        assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
        broker.fail_next["WriteTxnMarkers"] = [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
        with pytest.raises(OperatingError, match="TRANSACTION_COORDINATOR_FENCED"):
            await abort_at(
                client,
                TopicPartition("t", 0),
                producer_id=1,
                producer_epoch=0,
                coordinator_epoch=0,
            )
