"""LOOP. ``ProducerIdManager``: assigns producer ids from blocks that the controller reserves.

One block is requested at a time; concurrent callers wait for the same response. The rest of a block
is lost when the broker stops: ids are plentiful.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.protocol.rpc_messages import AllocateProducerIdsRequest


class ProducerIdManager:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        channel: ControllerChannel,
        broker_epoch: Callable[[], BrokerEpoch],
        timeout_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._timeout_ms = timeout_ms
        self._next = 0
        #: End of the reserved block, exclusive.
        self._end = 0
        self._refill = asyncio.Lock()

    async def next_id(self) -> int:
        """Return an unused producer id, from a new block if the present one is used up.

        :raises OperatingError: the controller did not reserve a block in time.
        """
        if self._next >= self._end:
            async with self._refill:
                if self._next >= self._end:
                    await self._reserve_block()
        producer_id = self._next
        self._next += 1
        return producer_id

    async def _reserve_block(self) -> None:
        block = await self._channel.call(
            AllocateProducerIdsRequest(
                broker_id=self._broker_id, broker_epoch=self._broker_epoch()
            ),
            timeout_ms=self._timeout_ms,
        )
        self._next = block.producer_id_start
        self._end = block.producer_id_start + block.producer_id_count
