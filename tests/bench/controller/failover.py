"""The cost of losing a controller, a broker, or both, and the cost of three voters.

*Killed*: three controllers, three brokers, twelve partitions with one producer each, acks=all, 50
records a second (the load of a game day), and ``kill -9``. Reported are the time until another
controller is active, the longest time without a successful request to a controller, and the longest
time between two acknowledged writes of one partition. The same client measures Apache Kafka in
kafka_failover.py, and other clusters with ``kraftjbod-gameday --observe``.

*Many partitions*: the active one of three controllers with N partitions is killed; the brokers are
scripted.

*Metadata write*: one change after the other, with one voter and with three.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.core.errors import OperatingError
from kraftjbod.gameday.faults.cluster_watch import wait_in_sync
from kraftjbod.gameday.load.acknowledgements import Acknowledgements
from kraftjbod.gameday.load.metadata_load import MetadataLoad
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.gameday.load.topic_load import TopicLoad
from kraftjbod.local.active_controller import activated_after, active_controller
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from tests.bench.controller import control_plane
from tests.bench.controller.scripted_broker import create_a_topic
from tests.bench.figures import Report, cpu_s, running_cluster

TOPIC: Final = "measured"
PARTITIONS: Final = 12
_RATE: Final = 50.0
_CALM_S: Final = 2.0
_AFTER_S: Final = 4.0
_FLOWING_S: Final = 0.5
_DEADLINE_S: Final = 120.0
_POLL_S: Final = 0.01
_WRITES: Final = 500
#: A long session, because scripted brokers end after the creation of topics and must not be fenced.
_LEFT_ALONE: Final = {
    "broker.session.timeout.ms": "3600000",
    "broker.reconnect.grace.ms": "0",
}


def killed(report: Report) -> None:
    """The active controller, the leader of a third of the partitions, and both at once."""
    with running_cluster(brokers=3, dirs=3, controllers=3) as local:
        asyncio.run(_kill_each(report, local))


def many_partitions(report: Report, partitions: int) -> None:
    """Kill the active one of three controllers with ``partitions`` partitions."""
    with running_cluster(brokers=0, dirs=0, controllers=3, controller_config=_LEFT_ALONE) as local:
        asyncio.run(_until(lambda: _active(local) is not None))
        control_plane.run_scripted_broker(local, partitions)
        active = _active(local)
        assert active is not None
        others = [one for one in local.controllers.values() if one is not active]
        killed_s = time.time()
        active.kill()
        asyncio.run(_until(lambda: activated_after(others, killed_s) is not None))
        new_s = (activated_after(others, killed_s) or 0.0) - killed_s
        asyncio.run(create_a_topic(",".join(one.address for one in others)))
        written_s = time.time() - killed_s
        what, how = f"failover, {partitions:,} partitions", "kill -9 of the active of three"
        report.add(f"{what}: another controller is active", new_s, "s", how=how)
        report.add(f"{what}: a topic is created", written_s, "s", how=how)


def metadata_write(report: Report) -> None:
    """The same changes with one voter and with three."""
    for controllers in (1, 3):
        with running_cluster(brokers=1, dirs=1, controllers=controllers) as local:
            seconds, cpu = asyncio.run(_write(local))
        name = f"metadata write, {controllers} voter{'s' if controllers > 1 else ''}"
        how = f"{_WRITES} changes of a topic's configuration, one after the other"
        report.add(name, seconds / _WRITES * 1e3, "ms", how=how)
        report.add(f"{name}: CPU of all controllers", cpu / _WRITES * 1e3, "ms", how=how)


class Killable(Protocol):
    """A process that can be killed and restarted."""

    def kill(self) -> None: ...

    def start(self) -> None: ...


async def _kill_each(report: Report, local: ClusterProcesses) -> None:
    async with ClusterClient(local.bootstrap_servers) as client:
        await client.retry(client.refresh_metadata)
        configs = {"min.insync.replicas": "2"}
        await create_topic(
            client, TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs
        )
        await wait_in_sync(client, TOPIC, timeout_s=_DEADLINE_S)
        for what, is_controller, broker in (
            ("the active controller", True, None),
            ("a broker", False, 1),
            ("both at once", True, 2),
        ):
            victims = [] if broker is None else [local.brokers[broker]]
            activated = None
            if is_controller:
                active = _active(local)
                assert active is not None
                victims.append(active)
                activated = partial(_activated, local, active)
            await measure_kill(report, local.bootstrap_servers, what, victims, activated)
            await local.wait_healthy(local.brokers, timeout_s=_DEADLINE_S)
            await wait_in_sync(client, TOPIC, timeout_s=_DEADLINE_S)


async def _activated(local: ClusterProcesses, died: DaemonProcess, died_wall_s: float) -> float:
    left = [one for one in local.controllers.values() if one is not died]
    await _until(lambda: activated_after(left, died_wall_s) is not None)
    return (activated_after(left, died_wall_s) or 0.0) - died_wall_s


async def measure_kill(
    report: Report,
    bootstrap_servers: str,
    what: str,
    victims: Sequence[Killable],
    activated: Callable[[float], Awaitable[float]] | None,
) -> None:
    """Kill ``victims`` with ``kill -9`` under load, measure, and restart them.

    :param activated: takes the time of the kill (wall clock) and returns the seconds until another
        controller is active; None if no controller is killed.
    """
    streams = {n: NumberedStream(f"{what}-{n}", size_bytes=200) for n in range(PARTITIONS)}
    load = TopicLoad.at_rate(streams, _RATE)
    metadata = MetadataLoad(bootstrap_servers, TOPIC)
    producing = asyncio.create_task(load.run_load(bootstrap_servers, TOPIC))
    asking = asyncio.create_task(metadata.run_load())
    await _until(lambda: load.is_flowing and bool(metadata.acks))
    await asyncio.sleep(_CALM_S)
    died_s, died_wall_s = time.monotonic(), time.time()
    for victim in victims:
        victim.kill()
    if activated is not None:
        new_s = await activated(died_wall_s)
        report.add(f"kill -9 of {what}: another controller is active", new_s, "s")
    await asyncio.sleep(_AFTER_S)
    # Kafka's session timeout is nine seconds.
    await _until(lambda: all(_flows(one) for one in load.loads))
    await asyncio.sleep(_FLOWING_S)
    ended_s = time.monotonic()
    load.stop()
    asking.cancel()
    await asyncio.gather(producing, asking, return_exceptions=True)
    assert not load.errors, load.errors
    gap_s = metadata.longest_gap_ms(died_s - _CALM_S, ended_s) / 1e3
    report.add(f"kill -9 of {what}: no controller did what it was asked", gap_s, "s")
    gaps = sorted(one.longest_gap(died_s - _CALM_S, ended_s).length_ms / 1e3 for one in load.loads)
    how = f"worst of {len(gaps)} partitions, one producer each; median {gaps[len(gaps) // 2]:.2f} s"
    report.add(f"kill -9 of {what}: longest gap between acks", gaps[-1], "s", how=how)
    for victim in victims:
        victim.start()


def _flows(one: Acknowledgements) -> bool:
    return bool(one.acks) and one.acks[-1].at_s > time.monotonic() - _FLOWING_S


async def _write(local: ClusterProcesses) -> tuple[float, float]:
    """Make :data:`_WRITES` changes; return their seconds and the controllers' CPU seconds."""
    async with ClusterClient(local.bootstrap_servers) as client:
        await client.retry(client.refresh_metadata)
        await create_topic(client, TOPIC, partitions=1, replication_factor=1)
        topic = ConfigResource(ResourceType.TOPIC, TOPIC)
        cpu, began_s = cpu_s(local.controllers.values()), time.perf_counter()
        for number in range(_WRITES):
            change = ConfigChange("retention.ms", str(604_800_000 + number))
            await incremental_alter_configs(client, {topic: [change]})
        seconds = time.perf_counter() - began_s
        return seconds, cpu_s(local.controllers.values()) - cpu


def _active(local: ClusterProcesses) -> DaemonProcess | None:
    return active_controller(local.controllers.values())


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            if condition():
                return
        except OperatingError:
            pass
        assert time.monotonic() < deadline, f"waited {_DEADLINE_S:.0f} s"
        await asyncio.sleep(_POLL_S)
