"""Lookup of local daemons that faults may break; tests/integration breaks them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults import local_daemons
from kraftjbod.gameday.faults.fault import CannotPlay
from kraftjbod.local.cluster_process import ClusterProcesses
from tests.unit.cli.mini_broker import BROKER_ID, mini_broker


def test_require_active_controller_refuses_single_or_stopped_controllers(tmp_path: Path) -> None:
    alone = ClusterProcesses.create(tmp_path / "1", brokers=1)
    with pytest.raises(CannotPlay, match="kraftjbod-local up --controllers 3"):
        local_daemons.require_active_controller(alone)
    stopped = ClusterProcesses.create(tmp_path / "3", brokers=1, controllers=3)
    with pytest.raises(CannotPlay, match="no controller is active just now"):
        local_daemons.require_active_controller(stopped)


async def test_require_local_cluster_refuses_cluster_of_another_machine() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        with pytest.raises(CannotPlay, match=f"broker {BROKER_ID} cannot be read on this machine"):
            await local_daemons.require_local_cluster(client, "t")


def test_local_cluster_of_unknown_process_is_none(tmp_path: Path) -> None:
    assert local_daemons.local_cluster_of(1, 1) is None


def test_first_controller_request_imports_no_module_of_kraftjbod() -> None:
    """An import under load would delay this process, which produces, and count as a gap."""
    program = (
        "import asyncio, sys\n"
        "import kraftjbod.gameday.gameday_tool\n"
        "from kraftjbod.cli import health_tool\n"
        "before = set(sys.modules)\n"
        "asyncio.run(health_tool._ask_controller('127.0.0.1:1', 'controller', 50, None))\n"
    )
    report = "except health_tool.OperatingError: print(sorted(set(sys.modules) - before))"
    lines = program.splitlines()
    lines[-1:] = ["try: " + lines[-1], report]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True
    )
    assert [name for name in ast.literal_eval(done.stdout) if name.startswith("kraftjbod")] == []
