"""WIRE. Kill a disk under load, build the timeline of the failover, and restore the disk.

The disk is a log directory, killed by ``chmod 000``. Times come from three sources: this process's
clock, the broker's telemetry, and the acknowledgements of the clients.
"""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.gameday.faults.cluster_watch import Victim, seen
from kraftjbod.gameday.load.acknowledgements import Acknowledgements, Gap
from kraftjbod.local.daemon_process import DaemonProcess

_POLL_S: Final = 0.02
_BEFORE_S: Final = 0.5
_AFTER_S: Final = 15.0
_NOTICED = "log_dir_offline"
_REPORTED = "log_dir_failure_acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """An event ``after_ms`` milliseconds after the death; ``None`` if it was not observed."""

    what: str
    after_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Time of the death by the monotonic and the wall clock, and the directory's former mode."""

    at_s: float
    wall_s: float
    mode: int


def kill_disk(path: Path) -> Death:
    """Set the mode of ``path`` to 000, so that no daemon can open files in it."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0)
    return Death(at_s=time.monotonic(), wall_s=time.time(), mode=mode)


def restore_disk(path: Path, death: Death) -> None:
    path.chmod(death.mode)


async def wait_for_new_leaders(
    client: ClusterClient, topic: str, victim: Victim, *, timeout_s: float
) -> float | None:
    """Return the time (monotonic) when every partition had a leader on another broker, or None."""

    def all_moved(metadata: ClusterMetadata) -> bool:
        partitions = metadata.topic(topic).partitions
        return all(partitions[p].leader not in (-1, victim.broker_id) for p in victim.led)

    return await seen(client, topic, all_moved, timeout_s)


async def wait_clients_back(
    loads: Sequence[Acknowledgements], victim: Victim, since_s: float, *, timeout_s: float
) -> bool:
    """Return whether each partition that lost its leader was written to after ``since_s``."""
    deadline = time.monotonic() + timeout_s
    waiting = [load for load in loads if load.partition in victim.led]
    while waiting and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        waiting = [load for load in waiting if not load.acks or load.acks[-1].at_s <= since_s]
    return not waiting


def timeline_of(
    death: Death,
    broker: DaemonProcess,
    directory_id: str | None,
    led_elsewhere_s: float | None,
    gaps: Mapping[int, Gap],
    victim: Victim,
) -> list[Milestone]:
    """Return the milestones of the failover in their expected order."""
    back_s = max((gaps[p].end_s for p in victim.led), default=None)
    return [
        Milestone(what="the disk dies (chmod 000)", after_ms=0),
        Milestone(
            what="the broker notices and takes the directory offline",
            after_ms=_logged_after_ms(broker, _NOTICED, directory_id, death),
        ),
        Milestone(
            what="the controller has recorded it and chosen new leaders",
            after_ms=_logged_after_ms(broker, _REPORTED, directory_id, death),
        ),
        Milestone(
            what="every partition is seen with its new leader",
            after_ms=_ms_after(led_elsewhere_s, death),
        ),
        Milestone(
            what="every client that wrote to the dead disk writes again",
            after_ms=_ms_after(back_s, death),
        ),
    ]


def gaps_around(
    loads: Sequence[Acknowledgements], death: Death, *, until_s: float | None = None
) -> dict[int, Gap]:
    """Return by partition the longest time between acknowledgements around the death.

    :param until_s: end (monotonic) of the measurement, before the next fault.
    """
    to_s = min(death.at_s + _AFTER_S, until_s or death.at_s + _AFTER_S)
    return {load.partition: load.longest_gap(death.at_s - _BEFORE_S, to_s) for load in loads}


def _ms_after(instant_s: float | None, death: Death) -> int | None:
    return None if instant_s is None else max(0, round((instant_s - death.at_s) * 1000))


def _logged_after_ms(
    broker: DaemonProcess, event: str, directory_id: str | None, death: Death
) -> int | None:
    """Return after how many ms the broker first logged ``event`` since the death."""
    for logged in broker.events(event):
        at_s = datetime.fromisoformat(logged["timestamp"]).timestamp()
        if logged.get("directory_id") == directory_id and at_s >= death.wall_s - 0.001:
            return max(0, round((at_s - death.wall_s) * 1000))
    return None
