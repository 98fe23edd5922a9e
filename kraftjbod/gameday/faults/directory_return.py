"""WIRE. How a log directory of a broker is, and how it comes back: by the wire, with limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir
from kraftjbod.cli.clients.replica_admin import LogDirDescription, describe_log_dirs
from kraftjbod.core.errors import OperatingError, StartupError

ONLINE: Final = "online"
OFFLINE: Final = "offline"
_POLL_S: Final = 0.1
_REATTACH_TIMEOUT_MS: Final = 30_000


async def describe_log_dir(
    client: ClusterClient, broker_id: int, path: Path
) -> LogDirDescription | None:
    """What the broker says of the directory; ``None`` if it has none there.

    :raises OperatingError: if it does not answer.
    """
    described = await describe_log_dirs(client, broker_id)
    return next((one for one in described if one.path == str(path)), None)


async def wait_log_dir(
    client: ClusterClient,
    broker_id: int,
    path: Path,
    wanted: Callable[[LogDirDescription], bool],
    *,
    what: str,
    timeout_s: float,
) -> float:
    """The instant (monotonic) when the broker first reported the directory as ``wanted``.

    :raises StartupError: with what was reported last, when the time is over.
    """
    deadline = time.monotonic() + timeout_s
    last = "nothing"
    while time.monotonic() < deadline:
        try:
            found = await describe_log_dir(client, broker_id, path)
            if found is not None and wanted(found):
                return time.monotonic()
            last = "no such directory" if found is None else f"{found.state}"
        except OperatingError as e:
            last = str(e)
        await asyncio.sleep(_POLL_S)
    raise StartupError(
        f"{path} of broker {broker_id} is not {what} after {timeout_s:.0f} s; "
        f"its broker last said: {last}"
    )


async def wait_offline(
    client: ClusterClient, broker_id: int, path: Path, *, timeout_s: float
) -> None:
    """:raises StartupError: if the broker does not give the directory up in time."""
    await wait_log_dir(
        client,
        broker_id,
        path,
        lambda found: found.state == OFFLINE,
        what="offline",
        timeout_s=timeout_s,
    )


async def bring_back(
    client: ClusterClient, broker_id: int, path: Path, *, timeout_s: float
) -> None:
    """Wait until the directory is online, and reattach it whenever it is offline.

    :raises StartupError: with the broker's reason, when the time is over.
    """
    deadline = time.monotonic() + timeout_s
    reason = "it did not answer"
    while time.monotonic() < deadline:
        try:
            found = await describe_log_dir(client, broker_id, path)
            if found is not None and found.state == ONLINE:
                return
            if found is not None and found.state == OFFLINE:
                change = LogDirChange(operation="reattach", broker=broker_id, target=str(path))
                await change_log_dir(client, change, timeout_ms=_REATTACH_TIMEOUT_MS)
            reason = "no such directory" if found is None else f"it is {found.state}"
        except OperatingError as e:
            reason = str(e)
        await asyncio.sleep(_POLL_S)
    raise StartupError(
        f"{path} of broker {broker_id} is not online again after {timeout_s:.0f} s: {reason}"
    )
