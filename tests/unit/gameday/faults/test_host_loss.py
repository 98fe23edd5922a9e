"""Host loss: the virtual cable of a host is removed and restored; tests/integration plays it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.host_loss import BrokerHostLoss, ControllerHostLoss
from kraftjbod.local import network_hosts
from kraftjbod.local.cluster_process import ClusterProcesses


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root"
)
async def test_controller_host_loss_disconnects_and_reconnects_the_host(tmp_path: Path) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=0, controllers=1, hosts=True)
    host = cluster.controller.files.host
    links = [*network_hosts.command_prefix(host), "ip", "-br", "link", "show", "eth0"]

    def is_connected() -> bool:
        return "LOWER_UP" in subprocess.run(links, capture_output=True, text=True).stdout

    try:
        network_hosts.make(cluster.own_hosts)
        fault = ControllerHostLoss()
        assert is_connected()
        fault._break(cluster.controller)
        assert not is_connected()
        fault._mend(cluster.controller)
        assert is_connected()
    finally:
        cluster.kill()
    assert not is_connected()


async def test_undo_of_host_loss_without_injection_raises_nothing() -> None:
    async with ClusterClient("127.0.0.1:1") as client:
        await BrokerHostLoss().undo(client)
        await ControllerHostLoss().undo(client)
