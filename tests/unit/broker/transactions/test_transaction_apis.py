"""InitProducerId, AddPartitionsToTxn and EndTxn: validation."""

from __future__ import annotations

from kraftjbod.broker.transactions.transaction_records import TransactionState
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.transactions.transaction_rig import (
    Partitions,
    adding,
    end,
    init,
    marked_by,
    state_of,
)

E = ErrorCode
S = TransactionState


async def test_transaction_requests_with_invalid_fields_are_rejected(
    partitions: Partitions,
) -> None:
    async with marked_by(partitions, transaction_max_ids_per_partition="1") as rig:
        assert await init(rig, timeout_ms=0) == (-1, E.INVALID_TRANSACTION_TIMEOUT)
        assert await init(rig, timeout_ms=900_001) == (-1, E.INVALID_TRANSACTION_TIMEOUT)
        assert await init(rig, producer_id=3) == (-1, E.INVALID_REQUEST)
        assert await adding(rig, (1, 0), 0) == [E.INVALID_PRODUCER_ID_MAPPING]
        assert (await end(rig, (1, 0))).error_code == E.INVALID_PRODUCER_ID_MAPPING
        producer = await init(rig)
        codes = await adding(rig, producer, 0, 9)
        assert codes == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
        internal = await adding(rig, producer, 0, name="__transaction_state")
        assert internal == [E.TOPIC_AUTHORIZATION_FAILED]
        assert state_of(rig) is S.EMPTY
