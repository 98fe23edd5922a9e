from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_admin import LATEST, list_offsets
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications.app_rig import Rig, rig
from tests.sim.search.applications.transactional_producer import (
    TransactionalProducer,
)

_TP, _OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def _producer(around: Rig, *, grows_epoch: bool) -> TransactionalProducer:
    client = around.around().client("p")
    return TransactionalProducer(client, "p", timeout_ms=5_000, grows_epoch=grows_epoch)


@pytest.mark.parametrize("grows_epoch", [False, True])
def test_transactional_producer_writes_transactions_until_it_is_fenced(
    *, grows_epoch: bool
) -> None:
    with rig() as around:

        async def play() -> None:
            await around.make("t", 2)
            first, second = (_producer(around, grows_epoch=grows_epoch) for _ in range(2))
            await first.init()
            for committed in (True, False, True):
                epoch = first.epoch
                await first.send({_TP: [b"a", b"b"], _OTHER: [b"x"]}, WORLD_BEGAN_MS)
                await first.send({_TP: [b"c"]}, WORLD_BEGAN_MS)
                await first.send_offsets("g", {_TP: 3})
                await first.end(committed=committed)
                assert first.epoch == epoch + grows_epoch
            kafka = around.cluster.client("client").kafka
            await kafka.refresh_metadata(["t"])
            await asyncio.sleep(1)  # Markers follow the answer.
            ends = await list_offsets(kafka, "t", range(2), LATEST)
            assert ends == {0: 12, 1: 6}, "three transactions with a marker each"
            await first.send({_TP: [b"d"]}, WORLD_BEGAN_MS)
            await second.init()
            assert second.epoch > first.epoch
            with pytest.raises(OperatingError) as refused:
                await first.end(committed=True)
            fenced = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
            assert refused.value.code in fenced

        around.cluster.client("client").run(play())
