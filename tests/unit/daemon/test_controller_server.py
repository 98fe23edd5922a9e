"""Start and stop of the controller in this process; tests/integration runs real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import KafkaStorageError, StartupError
from kraftjbod.core.ids import Uuid
from kraftjbod.daemon.controller_server import ControllerServer
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequestRpc,
)
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir
from tests.faults.vfs_fault import Fault, FaultVfs


def _server(
    vfs: FaultVfs,
    environment: Environment | None = None,
    keys: Mapping[str, str] | None = None,
) -> ControllerServer:
    properties = {
        "process.roles": "controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9",
        "listeners": "CONTROLLER://127.0.0.1:0",
        "metadata.log.dir": "/d1",
        "log.dir.reserve.bytes": "65536",
        **(keys or {}),
    }
    config = ControllerConfig.from_properties(properties, source="test", base_dir="/")
    around = replace(environment or Environment(), make_vfs=lambda: vfs)
    return ControllerServer(config, around)


@pytest.fixture
def vfs() -> FaultVfs:
    inner = MemVfs()
    format_dir(inner, "/d1", 1)
    return FaultVfs(inner)


async def test_controller_restart_continues_the_log_with_new_incarnation(vfs: FaultVfs) -> None:
    slow = Fault(effect=DiskFault.SLOW, kinds=frozenset({"close"}), path="*/.lock", delay_s=0.05)
    vfs.inject(slow)
    incarnations = set[Uuid]()
    for life in (1, 2):
        environment = Environment()
        server = _server(vfs, environment)
        await server.start()
        # Besides the first entry of its term, each incarnation registers itself (KIP-919).
        while environment.metrics.snapshot()["LastCommittedRecordOffset"] < 2 * life:
            await asyncio.sleep(0.001)
        assert server.controller is not None
        (found,) = server.controller.state.controllers.values()
        incarnations.add(found.incarnation_id)
        assert [each.host for each in found.listeners] == ["127.0.0.1"]
        await server.stop()
    assert (slow.hits, len(incarnations)) == (2, 2)


async def test_start_fails_with_unformatted_directory() -> None:
    inner = MemVfs()
    inner.make_dirs("/d1")
    server = _server(FaultVfs(inner))
    with pytest.raises(StartupError, match="/d1"):
        await server.start()
    await server.stop()


async def test_start_fails_with_directory_of_another_node(vfs: FaultVfs) -> None:
    keys = {"node.id": "2", "controller.quorum.voters": "2@127.0.0.1:9"}
    server = _server(vfs, keys=keys)
    with pytest.raises(StartupError):
        await server.start()
    await server.stop()


async def test_status_shows_state_and_counts_of_log_dirs(vfs: FaultVfs) -> None:
    server = _server(vfs, keys={"log.dir.check.interval.ms": "10"})
    assert server.status() == "starting; log directories: 1 online, 0 impaired, 0 offline"
    await server.start()
    assert server.status() == "running; log directories: 1 online, 0 impaired, 0 offline"
    await server.stop()


async def test_failed_directory_stops_idle_controller(vfs: FaultVfs) -> None:
    server = _server(vfs, keys={"log.dir.check.interval.ms": "10"})
    await server.start()
    vfs.inject(Fault(path="/d1/*"))
    with pytest.raises(KafkaStorageError):
        await server.wait_failed()
    await server.stop()


async def test_telemetry_level_follows_dynamic_config_and_returns_to_the_file(
    vfs: FaultVfs,
) -> None:
    levels = list[str]()
    server = _server(vfs, Environment(set_telemetry_level=levels.append))
    await server.start()
    assert server.controller is not None
    for name, operation, value in (
        ("", 0, "debug"),
        ("", 0, "error"),
        ("", 0, "error"),
        ("", 1, None),
    ):
        change = ConfigChange(name="telemetry.level", operation=operation, value=value)
        resource = AlteredResource(resource_type=4, name=name, changes=(change,))
        await server.controller.handle(IncrementalAlterConfigsRequestRpc(resources=(resource,)))
    await server.stop()
    assert levels == ["debug", "error", "info"]
