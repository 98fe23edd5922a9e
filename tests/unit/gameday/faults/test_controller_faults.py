"""``ControllerDisk`` breaks and restores the directory; tests/integration plays it."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.controller_faults import ControllerDisk
from kraftjbod.local.cluster_process import ClusterProcesses


async def test_controller_disk_restores_mode_and_undo_starts_no_controller(
    tmp_path: Path,
) -> None:
    controller = ClusterProcesses.create(tmp_path, brokers=1, controllers=3).controller
    path = controller.files.metadata_dir
    path.chmod(0o750)
    fault = ControllerDisk()
    fault._break(controller)
    assert path.stat().st_mode & 0o777 == 0
    fault._mend(controller)
    assert path.stat().st_mode & 0o777 == 0o750
    async with ClusterClient("127.0.0.1:1") as client:
        await fault.undo(client)
    assert not controller.is_running
