"""WIRE. The state of a broker's log directory, and its reattachment, with time limits."""

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
    """Return the broker's description of the directory, or ``None`` if it has none at ``path``.

    :raises OperatingError: the broker did not answer.
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
    """Return the time (monotonic) when the broker first reported the directory as ``wanted``.

    :raises StartupError: it did not in time; the message has the last reported state.
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
    """Wait until the broker reports the directory as OFFLINE.

    :raises StartupError: the broker did not take the directory offline within ``timeout_s``
        seconds.
    """
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
    """Wait until the directory is online, and reattach it while it is offline.

    :raises StartupError: it is not online in time; the message has the broker's reason.
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
