"""The controller's start and stop in one process; tests/integration has the real one."""

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
    IncrementalAlterConfigsRequest,
)
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir
from tests.faults.vfs_fault import Effect, Fault, FaultVfs


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


async def test_start_and_stop_leave_a_log_to_go_on_with(vfs: FaultVfs) -> None:
    slow = Fault(effect=Effect.DELAY, kinds=frozenset({"close"}), path="*/.lock", delay_s=0.05)
    vfs.inject(slow)
    incarnations = set[Uuid]()
    for life in (1, 2):
        environment = Environment()
        server = _server(vfs, environment)
        await server.start()
        # Beside what makes it active, each life registers an incarnation of its own (KIP-919).
        while environment.metrics.snapshot()["LastCommittedRecordOffset"] < 2 * life:
            await asyncio.sleep(0.001)
        assert server.controller is not None
        (found,) = server.controller.state.controllers.values()
        incarnations.add(found.incarnation_id)
        assert [each.host for each in found.listeners] == ["127.0.0.1"]
        await server.stop()
    assert (slow.hits, len(incarnations)) == (2, 2)


async def test_an_unformatted_dir_is_refused() -> None:
    inner = MemVfs()
    inner.make_dirs("/d1")
    server = _server(FaultVfs(inner))
    with pytest.raises(StartupError, match="/d1"):
        await server.start()
    await server.stop()


async def test_another_node_s_dir_is_refused(vfs: FaultVfs) -> None:
    keys = {"node.id": "2", "controller.quorum.voters": "2@127.0.0.1:9"}
    server = _server(vfs, keys=keys)
    with pytest.raises(StartupError):
        await server.start()
    await server.stop()


async def test_the_status_reports_whether_it_serves_and_how_its_directory_is(vfs: FaultVfs) -> None:
    server = _server(vfs, keys={"log.dir.check.interval.ms": "10"})
    assert server.status() == "starting; log directories: 1 online, 0 impaired, 0 offline"
    await server.start()
    assert server.status() == "running; log directories: 1 online, 0 impaired, 0 offline"
    await server.stop()


async def test_a_failing_dir_ends_an_idle_controller(vfs: FaultVfs) -> None:
    server = _server(vfs, keys={"log.dir.check.interval.ms": "10"})
    await server.start()
    vfs.inject(Fault(path="/d1/*"))
    with pytest.raises(KafkaStorageError):
        await server.wait_failed()
    await server.stop()


async def test_its_level_of_telemetry_follows_what_is_set_and_its_file_again(vfs: FaultVfs) -> None:
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
        await server.controller.handle(IncrementalAlterConfigsRequest(resources=(resource,)))
    await server.stop()
    assert levels == ["debug", "error", "info"]
