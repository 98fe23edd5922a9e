"""``SuspectProbe``: a suspect is dead if all its addresses refuse the connection."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kraftjbod.controller.brokers.suspect_probe import SuspectProbe
from kraftjbod.core.ids import BrokerEpoch, BrokerId, Uuid
from kraftjbod.metadata.records import Listener, RegisterBrokerRecord
from kraftjbod.metadata.registrations import BrokerRegistration


def broker(*ports: int) -> BrokerRegistration:
    record = RegisterBrokerRecord(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(7),
        incarnation_id=Uuid(bytes(16)),
        listeners=tuple(Listener(name=f"L{port}", host="h", port=port) for port in ports),
        rack=None,
        fenced=False,
        in_controlled_shutdown=False,
        log_dirs=(),
    )
    return BrokerRegistration.from_record(record)


@pytest.mark.parametrize(
    ("suspect", "refusals", "is_dead", "tries"),
    [
        (broker(1), {1: [True]}, True, 1),
        (broker(1), {1: [False, False, True]}, True, 3),
        (broker(1), {1: [False, False, False]}, False, 3),
        (broker(1, 2), {1: [True] * 3, 2: [False] * 3}, False, 3),
        (broker(1, 2), {1: [False, True], 2: [True, True]}, True, 2),
        (broker(), {}, False, 0),
    ],
)
async def test_suspect_probe_reports_broker_whose_addresses_all_refuse(
    suspect: BrokerRegistration, refusals: dict[int, list[bool]], is_dead: bool, tries: int
) -> None:
    suspects = [suspect]
    found: asyncio.Queue[BrokerRegistration] = asyncio.Queue()
    asked: list[int] = []
    done = asyncio.Event()

    def take_suspects() -> list[BrokerRegistration]:
        taken = suspects.copy()
        suspects.clear()
        if not taken:
            done.set()
        return taken

    async def is_refused(host: str, port: int) -> bool:
        assert host == "h"
        asked.append(port)
        return refusals[port].pop(0)

    probe = SuspectProbe(take_suspects=take_suspects, is_refused=is_refused, on_refused=found.put)
    running = asyncio.create_task(probe.run_probes())
    probe.wake()
    await asyncio.sleep(0)
    probe.wake()
    await done.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert asked.count(1) == tries
    assert found.qsize() == is_dead
