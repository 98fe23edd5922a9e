"""Faults of disks without a broker: impossible ones are refused before anything is broken.

tests/integration/tour/test_gameday.py breaks real disks of real brokers."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.disk_faults import DeadDisk, MountedDisk
from kraftjbod.gameday.faults.fault import CannotPlay, Fault
from kraftjbod.testing import fault_fs
from tests.unit.cli.mini_broker import mini_broker


async def test_dead_disk_refuses_cluster_with_one_good_directory() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        disk: Fault = DeadDisk()
        with pytest.raises(CannotPlay, match="no disk can be taken"):
            await disk.aim(client, "t")
        await disk.undo(client)


async def test_mounted_disk_without_fuse_cannot_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_fs, "why_not", lambda: "there is no /dev/fuse")
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        disk: Fault = MountedDisk("hang")
        with pytest.raises(CannotPlay, match="cannot be made hang here: there is no /dev/fuse"):
            await disk.prepare(client)
        await disk.undo(client)
        assert broker.asked == []
