"""Faults of disks, as far as no broker is needed: what cannot be broken is refused before anything
is.

Real disks of real brokers are broken in tests/integration/tour/test_gameday.py.
"""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.disk_faults import DeadDisk, MountedDisk
from kraftjbod.gameday.faults.fault import CannotPlay, Fault
from kraftjbod.testing import fault_fs
from tests.unit.cli.mini_broker import mini_broker


async def test_a_cluster_with_one_good_directory_loses_none() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        disk: Fault = DeadDisk()
        with pytest.raises(CannotPlay, match="no disk can be taken"):
            await disk.aim(client, "t")
        await disk.undo(client)


async def test_without_fuse_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_fs, "why_not", lambda: "there is no /dev/fuse")
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        disk: Fault = MountedDisk("hang")
        with pytest.raises(CannotPlay, match="cannot be made hang here: there is no /dev/fuse"):
            await disk.prepare(client)
        await disk.undo(client)
        assert broker.asked == []
