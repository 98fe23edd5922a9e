"""WIRE. Kill two processes under load, after the disk: the active controller, then a broker.

Both are killed by SIGKILL and started again. Producers and consumers do not need a controller, so
the tour also measures how long metadata requests fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import StartupError
from kraftjbod.gameday.faults.cluster_watch import Victim
from kraftjbod.gameday.load.acknowledgements import Acknowledgements, Gap
from kraftjbod.gameday.load.metadata_load import MetadataLoad
from kraftjbod.local.active_controller import activated_after, active_controller
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.tour import disk_death
from kraftjbod.tour.disk_death import Death, Milestone

_TIMEOUT_S: Final = 40.0
_POLL_S: Final = 0.02
#: Load after each restart, so that gaps end before they are measured.
_AFTER_S: Final = 0.5
_CALM_S: Final = 0.3
_MISSED: Final = frozenset({"broker_gone", "broker_session_expired"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDeath:
    """A killed process, the timeline, and the gap of each partition; ``led`` are its partitions."""

    who: str
    goal_ms: int
    milestones: Sequence[Milestone]
    gaps: Mapping[int, Gap]
    led: frozenset[int] = field(default=frozenset())

    @property
    def gap_ms_max(self) -> int:
        return max(gap.length_ms for gap in self.gaps.values())

    def document(self) -> dict[str, Any]:
        """Return the death as a JSON document."""
        return {
            "killed": self.who,
            "led_from_it": sorted(self.led),
            "timeline": [{"what": one.what, "after_ms": one.after_ms} for one in self.milestones],
            "gap_ms_max": self.gap_ms_max,
            "gap_ms": {str(partition): gap.length_ms for partition, gap in self.gaps.items()},
        }


async def kill_controller(
    cluster: ClusterProcesses, topic: str, loads: Sequence[Acknowledgements], *, goal_ms: int
) -> ProcessDeath:
    """Kill the active controller, and restart it once another one is active.

    :raises StartupError: no controller is active, or none takes over.
    """
    active = active_controller(cluster.controllers.values())
    if active is None:
        raise StartupError("no controller is active")
    others = [one for one in cluster.controllers.values() if one is not active]
    metadata = MetadataLoad(cluster.bootstrap_servers, topic)
    asking = asyncio.create_task(metadata.run())
    try:
        await _until(lambda: bool(metadata.acks), "a controller to do what it is asked")
        await asyncio.sleep(_CALM_S)
        death = _now()
        active.kill()
        await _until(lambda: bool(activated_after(others, death.wall_s)), "another controller")
        new_wall_s = activated_after(others, death.wall_s) or 0.0
        new_s = death.at_s + new_wall_s - death.wall_s
        await _until(lambda: metadata.acks[-1] > new_s, "the new controller to do what it is asked")
        done_s = next(at_s for at_s in metadata.acks if at_s > new_s)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    active.start()
    cluster.write_cluster_json()
    await asyncio.sleep(_AFTER_S)
    return ProcessDeath(
        who=f"{active.files.name}, the active one",
        goal_ms=goal_ms,
        milestones=[
            Milestone(what="the active controller dies (kill -9)", after_ms=0),
            Milestone(what="another controller is active", after_ms=_ms(new_s - death.at_s)),
            Milestone(
                what="a controller does again what it is asked", after_ms=_ms(done_s - death.at_s)
            ),
        ],
        gaps=disk_death.gaps_around(loads, death, until_s=time.monotonic()),
    )


async def kill_broker(
    cluster: ClusterProcesses,
    client: ClusterClient,
    topic: str,
    broker_id: int,
    loads: Sequence[Acknowledgements],
    *,
    goal_ms: int,
) -> ProcessDeath:
    """Kill the broker, and restart it once other brokers lead and clients write to them.

    ``goal_ms`` is the goal for the longest gap of a partition.
    """
    metadata = await client.refresh_metadata([topic])
    partitions = metadata.topic(topic).partitions.values()
    broker = cluster.brokers[broker_id]
    victim = Victim(
        broker_id=broker_id,
        path=broker.files.directory,
        led=frozenset(p.partition for p in partitions if p.leader == broker_id),
        replicas=sum(broker_id in p.replicas for p in partitions),
    )
    death = _now()
    broker.kill()
    led_elsewhere_s = await disk_death.wait_for_new_leaders(
        client, topic, victim, timeout_s=_TIMEOUT_S
    )
    are_back = await disk_death.wait_clients_back(
        loads, victim, led_elsewhere_s or death.at_s, timeout_s=_TIMEOUT_S
    )
    await asyncio.sleep(_AFTER_S)
    gaps = disk_death.gaps_around(loads, death, until_s=time.monotonic())
    missed_after_ms = _missed_after_ms(cluster, broker_id, death)
    broker.start()
    cluster.write_cluster_json()
    back_s = max((gaps[p].end_s for p in victim.led), default=None) if are_back else None
    return ProcessDeath(
        who=f"broker {broker_id}" + ", which led no partition" * (not victim.led),
        goal_ms=goal_ms,
        milestones=[
            Milestone(what="the broker dies (kill -9)", after_ms=0),
            Milestone(
                what="the controller misses it and has chosen new leaders",
                after_ms=missed_after_ms,
            ),
            *_clients_return(victim.led, death, led_elsewhere_s, back_s),
        ],
        gaps=gaps,
        led=victim.led,
    )


def _clients_return(
    led: frozenset[int], death: Death, led_elsewhere_s: float | None, back_s: float | None
) -> list[Milestone]:
    """Return the milestones of clients that find new leaders of the broker's partitions.

    Returns none if the broker led no partition, since the dead disk may have held all of them.
    """
    if not led:
        return []
    return [
        Milestone(
            what="every partition is seen with its new leader",
            after_ms=None if led_elsewhere_s is None else _ms(led_elsewhere_s - death.at_s),
        ),
        Milestone(
            what="every client that wrote to it writes again",
            after_ms=None if back_s is None else _ms(back_s - death.at_s),
        ),
    ]


def _missed_after_ms(cluster: ClusterProcesses, broker_id: int, death: Death) -> int | None:
    """Return after how many ms a controller logged the end of the broker's session."""
    for controller in cluster.controllers.values():
        for event in controller.events():
            if event["event"] in _MISSED and event.get("broker_id") == broker_id:
                at_s = datetime.fromisoformat(event["timestamp"]).timestamp()
                if at_s > death.wall_s:
                    return _ms(at_s - death.wall_s)
    return None


def _now() -> Death:
    return Death(at_s=time.monotonic(), wall_s=time.time(), mode=0)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


async def _until(condition: Callable[[], bool], what: str) -> None:
    """:raises StartupError: ``condition`` was not met in time; ``what`` describes it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise StartupError(f"waited {_TIMEOUT_S:.0f} s for {what}")
        await asyncio.sleep(_POLL_S)
