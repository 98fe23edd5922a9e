"""A real controller on loopback and formatted disks, for tests of the broker daemon."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.node_config import Endpoint
from kraftjbod.daemon.controller_server import ControllerServer
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks, open_disks
from kraftjbod.daemon.wiring.broker_wiring import BrokerWiring, build_wiring
from kraftjbod.storage.meta_properties import MetaProperties, write_meta_properties
from kraftjbod.storage.vfs import RealVfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import CLUSTER_ID, directory_id, format_dir

BROKER_ID = BrokerId(2)
PATIENCE_S = 30.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """Yield a port on which another socket listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def format_disk(path: Path, number: int, *, cluster_id: str = CLUSTER_ID) -> str:
    """Format a directory of broker ``BROKER_ID`` as the storage tool does."""
    path.mkdir(parents=True)
    properties = MetaProperties(
        cluster_id=cluster_id, node_id=BROKER_ID, directory_id=directory_id(number)
    )
    write_meta_properties(RealVfs(), str(path), properties)
    return str(path)


def broker_properties(controller_port: int, *log_dirs: str, **more: str) -> dict[str, str]:
    """Return properties of a broker with short intervals; ``more`` has underscores for dots."""
    return {
        "process.roles": "broker",
        "node.id": str(BROKER_ID),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": ",".join(log_dirs),
        "log.dir.check.interval.ms": "20",
        "log.dir.reserve.bytes": "65536",
        "broker.heartbeat.interval.ms": "50",
        "controller.request.timeout.ms": "500",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def broker_config(controller_port: int, *log_dirs: str, **more: str) -> BrokerConfig:
    properties = broker_properties(controller_port, *log_dirs, **more)
    return BrokerConfig.from_properties(properties, source="test", base_dir="/")


@contextlib.asynccontextmanager
async def controller() -> AsyncIterator[int]:
    """Start a whole controller with its log in memory, and yield its port."""
    vfs = MemVfs()
    format_dir(vfs, "/d1", 1)
    port = free_port()
    properties = {
        "process.roles": "controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "metadata.log.dir": "/d1",
        "log.dir.reserve.bytes": "65536",
    }
    config = ControllerConfig.from_properties(properties, source="test", base_dir="/")
    server = ControllerServer(config, Environment(make_vfs=lambda: vfs))
    await server.start()
    try:
        yield port
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def wiring_on(
    tmp_path: Path, around: Environment | None = None, **more: str
) -> AsyncIterator[BrokerWiring]:
    """Yield the wiring of a broker with one directory and no controller; none of it is running."""
    async with disks_and_wiring_on(tmp_path, around, **more) as (_, wiring):
        yield wiring


@contextlib.asynccontextmanager
async def disks_and_wiring_on(
    tmp_path: Path, around: Environment | None = None, **more: str
) -> AsyncIterator[tuple[BrokerDisks, BrokerWiring]]:
    """Yield the open disks of such a broker, too."""
    around = around or Environment()
    config = broker_config(9, format_disk(tmp_path / "d1", 1), **more)
    tasks = BackgroundTasks()
    disks = await open_disks(config, around)
    threads = threading.active_count()
    advertised = [Endpoint("PLAINTEXT", "127.0.0.1", 9)]
    wiring = build_wiring(config, around, disks, advertised, tasks)
    assert len(tasks) == 0
    assert threading.active_count() == threads
    yield disks, wiring
    wiring.cluster.channel.close()
    await disks.logs.close(broker_epoch=-1)
    disks.metadata_dir.close()
