"""WIRE. A cluster that outlives the command that started it: create, grow, and query it.

* ``up`` creates a cluster if none exists, and starts missing daemons of an existing one. Running
  daemons are left alone.
* Only one command at a time works on a data directory: a second one is refused.
* A cluster can grow by brokers (:func:`grow`). The rest of its shape cannot change.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kraftjbod.cli.health_tool import examine
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.local.cluster_process import CONTROLLER_PORT, FIRST_CLIENT_PORT, ClusterProcesses
from kraftjbod.local.cluster_security import ADMIN
from kraftjbod.local.daemon_process import DaemonProcess

DEFAULT_BROKERS: Final = 3
DEFAULT_DIRS: Final = 3
DEFAULT_CONTROLLERS: Final = 3
MOST_CONTROLLERS: Final = 5
MOST_BROKERS: Final = 32
MOST_DIRS: Final = 32

_LOCK_FILE: Final = "local.lock"
_USUAL_REPLICAS: Final = 3
_USUAL_IN_SYNC: Final = 2
_IN_SYNC_KEY: Final = "min.insync.replicas"
_ANSWER_TIMEOUT_MS: Final = 5000
#: Shorter than the defaults, so that a user of a trial cluster sees results soon.
_TELEMETRY: Final = {
    "storage.telemetry.log.dir.interval.ms": "1000",
    "storage.telemetry.replica.interval.ms": "2000",
    "group.telemetry.interval.ms": "2000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """State of one daemon: ``stopped``, ``running`` (without serving) or ``serving``."""

    daemon: DaemonProcess
    state: str
    reason: str | None = None
    """Why the daemon does not serve."""
    log_dirs: Mapping[str, str] = field(default_factory=dict)
    """State by path of a serving broker's directories: ``online``, ``saturated``, ..."""


def make_cluster(
    data_dir: Path,
    *,
    brokers: int = DEFAULT_BROKERS,
    dirs: int = DEFAULT_DIRS,
    controllers: int = DEFAULT_CONTROLLERS,
    first_client_port: int = FIRST_CLIENT_PORT,
    config: Mapping[str, str] | None = None,
    hosts: bool = False,
    security: str | None = None,
) -> ClusterProcesses:
    """Create the files of a new cluster in ``data_dir``. Starts no daemon.

    Topics have three replicas by default, or one per broker in a smaller cluster.

    :param first_client_port: port of broker 1, or the next free one; others are next to it.
    :param config: keys for every daemon that knows them.
    :param hosts: give each daemon its own host (network_hosts.py).
    :param security: security of the listener for clients (cluster_security.py); None: PLAINTEXT.
    :raises ConfigError: no daemon knows a key, or a number is out of its range.
    """
    if not (1 <= brokers <= MOST_BROKERS and 1 <= dirs <= MOST_DIRS):
        raise ConfigError(
            f"{brokers} brokers with {dirs} log directories each: there may be 1 to {MOST_BROKERS} "
            f"brokers and 1 to {MOST_DIRS} directories"
        )
    if not (1 <= controllers <= MOST_CONTROLLERS and controllers % 2):
        raise ConfigError(
            f"{controllers} controllers: an odd number up to {MOST_CONTROLLERS}, for a majority of "
            "them has to run, and one more than an odd number bears no more losses"
        )
    config = config or {}
    replicas = min(_USUAL_REPLICAS, brokers)
    in_sync = min(_USUAL_IN_SYNC, max(1, replicas - 1))
    # Only for the controller: a broker with a value below two logs a warning about it.
    of_controller = {_IN_SYNC_KEY: config.get(_IN_SYNC_KEY, str(in_sync))}
    return ClusterProcesses.create(
        data_dir,
        brokers=brokers,
        dirs=dirs,
        controllers=controllers,
        first_client_port=first_client_port,
        controller_port=first_client_port + CONTROLLER_PORT - FIRST_CLIENT_PORT,
        config={"default.replication.factor": str(replicas), **_TELEMETRY, **config},
        controller_config=of_controller,
        hosts=hosts,
        security=security,
    )


def require_same_shape(
    cluster: ClusterProcesses,
    *,
    brokers: int | None = None,
    dirs: int | None = None,
    controllers: int | None = None,
) -> None:
    """Check that the cluster has that shape, or can grow to it. None allows any number.

    :raises ConfigError: ``brokers`` is less, or the other numbers differ.
    """
    has_dirs = {len(broker.files.log_dirs) for broker in cluster.brokers.values()}
    is_quorum_same = controllers in (None, len(cluster.controllers))
    if (
        is_quorum_same
        and (brokers is None or brokers >= len(cluster.brokers))
        and (dirs is None or has_dirs == {dirs})
    ):
        return
    if not is_quorum_same:
        raise ConfigError(
            f"the cluster in {cluster.run_dir} has {len(cluster.controllers)} controllers, and "
            "that stays: make another one in another data directory, or remove this one with all "
            "its data"
        )
    raise ConfigError(
        f"the cluster in {cluster.run_dir} has {len(cluster.brokers)} brokers with "
        f"{' or '.join(map(str, sorted(has_dirs)))} log directories each; it can grow by brokers "
        "like these, and nothing else: make another one in another data directory, or remove this "
        "one with all its data"
    )


def grow(cluster: ClusterProcesses, brokers: int) -> int:
    """Add brokers to the layout until the cluster has ``brokers``, and do not start them.

    The next start formats and starts the new brokers.

    :returns: the number of added brokers.
    """
    missing = max(0, brokers - len(cluster.brokers))
    if missing:
        cluster.add_brokers(missing)
    return missing


async def daemon_states(cluster: ClusterProcesses) -> list[DaemonState]:
    """Return the state of every daemon, controllers first. Waits 5 s at most per daemon."""
    return await asyncio.gather(*(_state_of(cluster, daemon) for daemon in cluster.daemons))


async def _state_of(cluster: ClusterProcesses, daemon: DaemonProcess) -> DaemonState:
    if not daemon.is_running:
        return DaemonState(daemon=daemon, state="stopped", reason="it is not running")
    is_broker = daemon.files.role == "broker"
    settings = None
    if is_broker and cluster.security is not None:
        # With an authorizer only this user may ask.
        settings = str(cluster.security.properties_path(ADMIN))
    health = await examine(
        daemon.client_address, _ANSWER_TIMEOUT_MS, is_broker=is_broker, command_config=settings
    )
    if health.reason is not None:
        return DaemonState(daemon=daemon, state="running", reason=health.reason)
    return DaemonState(daemon=daemon, state="serving", log_dirs=health.log_dirs or {})


@contextlib.contextmanager
def claimed(data_dir: Path) -> Iterator[None]:
    """Hold the lock for starting and stopping the cluster in ``data_dir``.

    :raises StartupError: another command holds the lock.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / _LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(
                f"another command is starting or stopping the cluster in {data_dir}: wait for it"
            ) from None
        yield
