from __future__ import annotations

import asyncio
import random

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.protocol.records import Record
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications.app_rig import Rig, rig
from tests.sim.search.applications.copier import Copier

_RECORDS = 30


def _record(value: bytes) -> Record:
    return Record(value=value, timestamp_ms=WORLD_BEGAN_MS)


def _copy(around: Rig) -> None:
    # A seed whose draws start successors during the work.
    copier = Copier(random.Random(3), around.around(), ("source", 1), lambda _: _RECORDS)

    async def write() -> None:
        await around.make("source", 1)
        kafka = around.cluster.client("client").kafka
        await kafka.refresh_metadata(["source"])
        producer = Producer(kafka, "source")
        for number in range(_RECORDS):
            await producer.send(0, [_record(b"%d" % number)])
            await asyncio.sleep(0.4)
            if number == _RECORDS // 2:
                around.cluster.broker(3).kill()
        around.cluster.broker(3).start()
        # One more record, for a check of its progress.
        asyncio.get_running_loop().call_later(
            1, lambda: asyncio.ensure_future(producer.send(0, [_record(b"last")]))
        )

    around.play(copier, write)


def test_copier_copies_each_record_once_and_in_order() -> None:
    with rig() as around:
        _copy(around)
        assert around.findings == []
        assert any(note.endswith("is taken for dead") for note in around.notes)


@pytest.mark.long
def test_copier_that_restarts_from_the_beginning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def from_the_beginning(
        _self: Copier, _client: ClusterClient, *, is_stable: bool = True
    ) -> dict[int, int]:
        return {0: 0}

    monkeypatch.setattr(Copier, "_committed", from_the_beginning)
    with rig() as around:
        _copy(around)
        assert any("where that of" in found for found in around.findings)
