"""``MarkerSender`` sends markers to partition leaders."""

from __future__ import annotations

import pytest

from kraftjbod.broker.transactions.transaction_records import TransactionState
from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.gates import until
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


@pytest.mark.parametrize(
    "code", [E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.REQUEST_TIMED_OUT]
)
async def test_markers_are_sent_again_until_all_partitions_accept_them(
    partitions: Partitions, code: ErrorCode
) -> None:
    async with marked_by(partitions) as rig:
        partitions.code = code
        producer = await init(rig)
        await adding(rig, producer, 0)
        await end(rig, producer)
        await until(lambda: len(partitions.markers) > 2)
        assert state_of(rig) is S.PREPARE_COMMIT
        assert await init(rig) == (-1, E.CONCURRENT_TRANSACTIONS)
        partitions.code = E.NONE
        await until(lambda: state_of(rig) is S.COMPLETE_COMMIT)
