"""WIRE. ``ClusterProcesses``: controllers and brokers as processes on loopback.

Creates a run directory, writes configuration files, formats the disks as the storage tool does,
starts daemons, waits until all are healthy, stops the daemons that it started, and writes
``cluster.json`` for other programs::

    cluster = ClusterProcesses.create(Path("run"))
    await cluster.start()
    cluster.brokers[2].kill()
    cluster.dir_path(1, 3).chmod(0)
    await cluster.stop()

* Files of daemon ``x`` are in ``run_dir/x/``: ``x.properties``, ``telemetry.jsonl``,
  ``metrics.json``, ``metadata/`` and for brokers ``disk-1/``, ``disk-2/``, ...
* Only processes that belong to this run directory are ever signalled.
* A stopped cluster starts again with its data: :meth:`ClusterProcesses.load`.
* An invalid value is refused before any file is written.
* The next start resumes an interrupted one: ``cluster.json`` lists the daemons that were never
  formatted.

This module never reads the data of a daemon.
"""

from __future__ import annotations

import asyncio
import compileall
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.storage_tool import Formatter, load_settings
from kraftjbod.cli.terminal.command import Answer
from kraftjbod.core.allowed_hosts import ALLOWED_HOSTS_KEY
from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import require_known
from kraftjbod.core.errors import ConfigError, KraftJbodError, OperatingError, StartupError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.metadata_version import DEFAULT_METADATA_VERSION
from kraftjbod.core.properties import format_properties, parse_properties
from kraftjbod.local import network_hosts
from kraftjbod.local.cluster_security import ADMIN, CLIENT_LISTENER, ClusterSecurity
from kraftjbod.local.daemon_process import DaemonFiles, DaemonProcess
from kraftjbod.local.ports import HOST, PortReservation, is_free, reserve_port
from kraftjbod.local.privileges import PACKAGE_ROOT, Privileges, choose_privileges

#: Node id of the first controller; further controllers have the following ids.
CONTROLLER_ID = 100
FIRST_CLIENT_PORT = 9092
CONTROLLER_PORT = 9090
ANY_PORT = 0
#: Name of a daemon's first listener, by role. Brokers of a secure cluster have a second one.
LISTENERS = {"controller": "CONTROLLER", "broker": "PLAINTEXT"}
MODELS: Mapping[str, type[BrokerConfig] | type[ControllerConfig]] = {
    "controller": ControllerConfig,
    "broker": BrokerConfig,
}

CONTROLLER_COMMAND = (sys.executable, "-m", "kraftjbod.daemon.controller_server")
BROKER_COMMAND = (sys.executable, "-m", "kraftjbod.daemon.broker_server")
_POLL_S = 0.05
#: Kafka's default replication factor; without this limit a small cluster has no coordinators.
_USUAL_REPLICAS = 3
_USUAL_MIN_ISR = 2
#: Key in cluster.json: ids of daemons that were not formatted yet.
_UNFORMATTED = "unformatted"
#: Key in cluster.json: the security of the clients' listener; absent without security.
_SECURITY = "security"
#: Keys that differ between brokers and are not copied to added brokers.
_OWN_KEYS = frozenset(
    {
        "advertised.listeners",
        "broker.rack",
        "listeners",
        "log.dir",
        "log.dirs",
        "log.dirs.allowed.roots",
        "metadata.log.dir",
        "metrics.snapshot.path",
        "node.id",
    }
)
#: Usual mount point of a disk that is added later.
_MOUNT_POINT = Path("/mnt/disk")


class ClusterProcesses:
    """The daemons of one cluster on this machine, by node id, and their files in ``run_dir``.

    :meth:`create` makes a new cluster; :meth:`load` returns the existing one of a directory.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        cluster_id: str,
        privileges: Privileges,
        controllers: Mapping[int, DaemonProcess],
        brokers: Mapping[int, DaemonProcess],
        reserved: Sequence[PortReservation] = (),
        security: ClusterSecurity | None = None,
    ) -> None:
        self.run_dir = run_dir
        #: Certificates and users of the listener for clients; None: that listener is PLAINTEXT.
        self.security = security
        self.cluster_id = cluster_id
        self.privileges = privileges
        self.controllers = dict(controllers)
        self.brokers = dict(brokers)
        self._reserved = tuple(reserved)
        #: Ids of nodes that were not formatted yet. Missing files of any other node are a loss.
        self._unformatted: set[int] = set()

    @classmethod
    def create(
        cls,
        run_dir: Path,
        *,
        brokers: int = 3,
        dirs: int = 3,
        controllers: int = 1,
        first_client_port: int = ANY_PORT,
        controller_port: int = ANY_PORT,
        config: Mapping[str, str] | None = None,
        controller_config: Mapping[str, str] | None = None,
        broker_config: Mapping[int, Mapping[str, str]] | None = None,
        log_dirs: Mapping[int, Sequence[Path]] | None = None,
        broker_command: Sequence[str] = BROKER_COMMAND,
        privileges: Privileges | None = None,
        hosts: bool = False,
        security: str | None = None,
    ) -> ClusterProcesses:
        """Create the directories and configuration files of a new cluster. Starts no daemon.

        :param first_client_port: brokers take this port and the following free ones;
            ``ANY_PORT`` takes any port, reserved until :meth:`release_ports`.
        :param config: keys for the configuration file of every daemon that knows them. Internal
            topics have three replicas by default, or one per broker in a smaller cluster.
        :param controller_port: port of the first controller; others take free ports below it.
        :param controller_config: further keys of each controller.
        :param broker_config: further keys, by broker id (1, 2, ...).
        :param log_dirs: by broker id, directories to use instead of creating ``dirs`` new ones.
        :param broker_command: command of a broker; the configuration file is its last argument.
        :param privileges: user of the daemons; by default one to whom file modes apply.
        :param hosts: give each daemon its own host (network_hosts.py). Needs root.
        :param security: ``ssl``, ``sasl_ssl`` or ``sasl_plaintext`` (cluster_security.py).
        :raises ConfigError: a key is unknown, a value invalid, or both hosts and security given.
        """
        controller_ids = range(CONTROLLER_ID, CONTROLLER_ID + controllers)
        extra = dict.fromkeys(controller_ids, controller_config or {}) | dict(broker_config or {})
        require_known_config(config or {}, extra)
        config = {**_of_internal_topics(brokers), **(config or {})}
        run_dir = run_dir.resolve()
        secured = None if security is None else _secured(security, run_dir, hosts=hosts)
        run_dir.mkdir(parents=True, exist_ok=True)
        privileges = privileges or choose_privileges(run_dir)
        taken, reserved = set[int](), list[PortReservation]()
        addresses = _plan_hosts(controllers + brokers, config) if hosts else iter(())
        quorum = _quorum(run_dir, controller_ids, controller_port, taken, reserved, addresses)
        per_broker = 1 if secured is None else 2
        nodes = _broker_files(
            run_dir,
            [_free_port(first_client_port, taken, reserved) for _ in range(brokers * per_broker)],
            brokers,
            addresses=addresses,
            log_dirs=log_dirs or {},
            dirs=dirs,
        )
        everything = (*quorum, *nodes)
        common = _Common(quorum, privileges, secured)
        _write_configs(everything, extra, shared=config, common=common)
        made = cls(
            run_dir,
            cluster_id=str(Uuid.random(os.urandom)),
            privileges=privileges,
            controllers=_processes(quorum, CONTROLLER_COMMAND, privileges),
            brokers=_processes(nodes, broker_command, privileges),
            reserved=reserved,
            security=secured,
        )
        made._unformatted.update(files.node_id for files in everything)
        return made

    def add_brokers(self, count: int) -> None:
        """Add ``count`` brokers to the layout; :meth:`start` formats and starts them.

        New brokers have as many log directories as the last broker, the next free ports above it,
        its command, and its configuration except for ids, ports and paths.

        :raises ConfigError: a value in the copied configuration is invalid for a broker.
        """
        last = self.brokers[max(self.brokers)]
        pattern = last.files
        source = str(pattern.config_path)
        values = parse_properties(pattern.config_path.read_text(encoding="utf-8"), source)
        extra = {key: value for key, value in values.items() if key not in _OWN_KEYS}
        quorum = [controller.files for controller in self.controllers.values()]
        taken = {daemon.files.port for daemon in self.daemons}
        taken.update(daemon.files.client_port or 0 for daemon in self.daemons)
        hosts = iter(network_hosts.further(self.own_hosts, count) if self.own_hosts else ())
        nodes = [
            lay_out(
                self.run_dir,
                "broker",
                node_id,
                port=_free_port(pattern.port + 1, taken, []),
                client_port=_free_port(pattern.port + 1, taken, []) if self.security else None,
                host=next(hosts, HOST),
                dirs=len(pattern.log_dirs),
            )
            for node_id in range(pattern.node_id + 1, pattern.node_id + 1 + count)
        ]
        own = {files.node_id: extra for files in nodes}
        common = _Common(quorum, self.privileges, self.security)
        _write_configs(nodes, own, shared={}, common=common)
        self.brokers.update(_processes(nodes, last.command, self.privileges))
        self._unformatted.update(files.node_id for files in nodes)

    @classmethod
    def load(cls, run_dir: Path) -> ClusterProcesses | None:
        """Return the cluster of ``run_dir/cluster.json``, or ``None`` if there is no such file.

        :raises StartupError: the file does not describe a cluster.
        """
        run_dir = run_dir.resolve()
        path = run_dir / "cluster.json"
        if not path.exists():
            return None
        privileges = choose_privileges(run_dir)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            daemons = {
                entry["id"]: _read_daemon(run_dir, entry, privileges)
                for entry in document["daemons"]
            }
            found = cls(
                run_dir,
                cluster_id=document["cluster_id"],
                privileges=privileges,
                controllers={id_: one for id_, one in daemons.items() if id_ >= CONTROLLER_ID},
                brokers={id_: one for id_, one in daemons.items() if id_ < CONTROLLER_ID},
                security=_read_security(document.get(_SECURITY), run_dir),
            )
        except (ValueError, KeyError, TypeError, ConfigError) as e:
            raise StartupError(f"{path} does not describe a cluster: {e!r}") from e
        found._unformatted.update(document.get(_UNFORMATTED, ()))
        return found

    @property
    def controller(self) -> DaemonProcess:
        """The first controller, which need not be the active one."""
        return self.controllers[CONTROLLER_ID]

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients."""
        return ",".join(broker.client_address for broker in self.brokers.values())

    @property
    def daemons(self) -> list[DaemonProcess]:
        return [*self.controllers.values(), *self.brokers.values()]

    @property
    def is_running(self) -> bool:
        """Whether every daemon runs."""
        return all(daemon.is_running for daemon in self.daemons)

    def dir_path(self, broker_id: int, number: int) -> Path:
        """Return the path of log directory ``number`` (1, 2, ...) of a broker."""
        return self.brokers[broker_id].files.log_dirs[number - 1]

    async def start(self, *, timeout_s: float = 60.0) -> list[str]:
        """Format new daemons, start the ones that do not run, and wait until every broker is
        healthy (:meth:`wait_healthy`).

        :returns: names of the daemons that were started.
        :raises StartupError: a daemon ended or did not become healthy. Started daemons are killed
            only if no daemon ran before.
        """
        if self.privileges.owner is not None:
            # The daemons' user cannot write bytecode files beside the code.
            compileall.compile_dir(PACKAGE_ROOT / "kraftjbod", quiet=2)
        # Another process can find the daemons if this one is killed from now on.
        self.write_cluster_json()
        self.format_directories()
        missing = [daemon for daemon in self.daemons if not daemon.is_running]
        self.write_cluster_json()
        try:
            network_hosts.make(self.own_hosts)
            for daemon in missing:
                daemon.start()
            self.write_cluster_json()
            await self.wait_healthy(self.brokers, timeout_s=timeout_s)
        except BaseException:
            if len(missing) == len(self.daemons):
                self.kill()
            raise
        return [daemon.files.name for daemon in missing]

    async def stop(self, *, timeout_s: float = 30.0) -> list[str]:
        """Stop brokers, then controllers, and return the names of daemons that had to be killed.

        Their own hosts, if any, are removed.

        :param timeout_s: how long each daemon may take, in seconds.
        """
        brokers = [broker for broker in self.brokers.values() if broker.is_running]
        orderly = await asyncio.gather(*(broker.stop(timeout_s) for broker in brokers))
        killed = [b.files.name for b, ok in zip(brokers, orderly, strict=True) if not ok]
        killed += [
            controller.files.name
            for controller in self.controllers.values()
            if controller.is_running and not await controller.stop(timeout_s)
        ]
        network_hosts.remove(self.own_hosts)
        return killed

    def kill(self) -> None:
        """Send SIGKILL to all running daemons, and remove their own hosts, if any."""
        for daemon in self.daemons:
            daemon.kill()
        network_hosts.remove(self.own_hosts)

    @property
    def own_hosts(self) -> list[str]:
        """Addresses of the daemons that have their own hosts (network_hosts.py)."""
        hosts = [daemon.files.host for daemon in self.daemons]
        return [host for host in hosts if network_hosts.is_own_host(host)]

    def release_ports(self) -> None:
        """Release the reserved ports. The cluster must not be started again."""
        for port in self._reserved:
            port.release()

    async def wait_healthy(
        self, broker_ids: Iterable[int] | None = None, *, timeout_s: float = 60.0
    ) -> None:
        """Wait until each of these brokers (by default all that run) serves clients and has the
        other brokers in its metadata.

        :raises StartupError: one of them, or the only controller, ended; or ``timeout_s`` seconds
            passed.
        """
        if broker_ids is None:
            broker_ids = [id_ for id_, broker in self.brokers.items() if broker.is_running]
        expected = frozenset(broker_ids)
        deadline = time.monotonic() + timeout_s
        waited_for = [self.brokers[broker_id] for broker_id in sorted(expected)]
        # Several controllers tolerate the failure of one.
        needed = [self.controller] if len(self.controllers) == 1 else []
        for broker in waited_for:
            while not await _sees(broker.address, expected):
                for daemon in (*needed, *waited_for):
                    daemon.require_running()
                if time.monotonic() > deadline:
                    raise StartupError(
                        f"{broker.files.name} is not healthy after {timeout_s:.0f} s; the end of "
                        f"{broker.files.telemetry_path}:\n{broker.last_words()}"
                    )
                await asyncio.sleep(_POLL_S)

    def write_cluster_json(self) -> Path:
        """Write paths, ports and pids to ``cluster.json`` atomically, and return its path."""
        document: dict[str, Any] = {
            "cluster_id": self.cluster_id,
            "bootstrap_servers": self.bootstrap_servers,
            "daemons": [_describe(daemon) for daemon in self.daemons],
        }
        if self.security is not None:
            document[_SECURITY] = self.security.security
            document["client_properties"] = str(self.security.properties_path())
        if self._unformatted:
            document[_UNFORMATTED] = sorted(self._unformatted)
        path = self.run_dir / "cluster.json"
        fresh = path.with_suffix(".json.tmp")
        fresh.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        fresh.replace(path)
        return path

    def format_directories(self) -> None:
        """Format the nodes that were never formatted.

        A node is never formatted twice: its empty directory means that a disk is missing, and a
        new metadata directory would not restore the lost one.

        :raises StartupError: a metadata directory is gone, or a node cannot be formatted.
        """
        users = (
            () if self.security is None or not self._unformatted else self.security.scram_users()
        )
        for daemon in self.daemons:
            files = daemon.files
            if files.node_id not in self._unformatted:
                if (files.metadata_dir / "meta.properties").exists():
                    continue
                raise StartupError(
                    f"the metadata directory {files.metadata_dir} of {files.name} is gone; it is "
                    f"not recreated, because the cluster's data would not fit it. Put it back "
                    f"(docs/metadata-backup.md), or remove {self.run_dir} with all its data"
                )
            try:
                # In this process, because a Python process per node takes as long as the daemons.
                Formatter(
                    load_settings(str(files.config_path)),
                    self.cluster_id,
                    DEFAULT_METADATA_VERSION.default_features,
                    users=users if files.role == "controller" else (),
                    # An interrupted start may have formatted some directories.
                    ignore_formatted=True,
                    answer=Answer(report=_hush),
                ).format()
            except (KraftJbodError, OSError) as e:
                raise StartupError(f"cannot format {files.name}: {e}") from e
            for directory in {files.metadata_dir, *files.log_dirs}:
                for path in directory.iterdir():
                    self.privileges.give(path)
            self._unformatted.discard(files.node_id)


def _hush(_line: str) -> None:
    """Drop the formatter's messages."""


def require_known_config(config: Mapping[str, str], extra: Mapping[int, Mapping[str, str]]) -> None:
    """Refuse configuration keys that no daemon knows.

    :param extra: further keys by node id.
    :raises ConfigError: names the unknown key and the most similar known key.
    """
    require_known(config, *MODELS.values(), source="config")
    for node_id, own in extra.items():
        role = "controller" if node_id >= CONTROLLER_ID else "broker"
        require_known(own, MODELS[role], source=f"{role}_config")


def lay_out(
    run_dir: Path,
    role: str,
    node_id: int,
    *,
    port: int,
    client_port: int | None = None,
    host: str = HOST,
    log_dirs: Sequence[Path] | None = None,
    dirs: int = 0,
) -> DaemonFiles:
    """Return the paths of a daemon; without ``log_dirs`` it gets ``dirs`` new log directories."""
    name = role if node_id == CONTROLLER_ID else f"{role}-{node_id}"
    directory = run_dir / name
    if log_dirs is None:
        log_dirs = [directory / f"disk-{number}" for number in range(1, dirs + 1)]
    return DaemonFiles(
        name=name,
        role=role,
        node_id=node_id,
        host=host,
        port=port,
        client_port=client_port,
        directory=directory,
        metadata_dir=directory / "metadata",
        log_dirs=tuple(log_dirs),
    )


def _broker_files(
    run_dir: Path,
    ports: Sequence[int],
    brokers: int,
    *,
    addresses: Iterator[str],
    log_dirs: Mapping[int, Sequence[Path]],
    dirs: int,
) -> list[DaemonFiles]:
    """Lay out the brokers of a new cluster.

    :param ports: one port per broker; before them, in a secure cluster, one per broker for clients.
    """
    of_clients = ports[: len(ports) - brokers]
    return [
        lay_out(
            run_dir,
            "broker",
            node_id,
            port=ports[len(of_clients) + node_id - 1],
            client_port=of_clients[node_id - 1] if of_clients else None,
            host=next(addresses, HOST),
            log_dirs=log_dirs.get(node_id),
            dirs=dirs,
        )
        for node_id in range(1, brokers + 1)
    ]


def _known_to(files: DaemonFiles, config: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of ``config`` that a daemon of this role knows."""
    known = MODELS[files.role].keys()
    return {key: value for key, value in config.items() if key in known}


def _config_of(
    files: DaemonFiles, *, quorum: Sequence[DaemonFiles], extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the complete configuration of a daemon.

    :raises ConfigError: the daemon would refuse a value.
    """
    values = {
        "process.roles": files.role,
        "node.id": str(files.node_id),
        "listeners": f"{LISTENERS[files.role]}://{files.host}:{files.port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(
            f"{voter.node_id}@{voter.host}:{voter.port}" for voter in quorum
        ),
        "log.dirs": ",".join(map(str, files.log_dirs or (files.metadata_dir,))),
        "metadata.log.dir": str(files.metadata_dir),
        "metrics.snapshot.path": str(files.metrics_path),
        **extra,
    }
    if files.host != HOST:
        # A switch inside this machine connects the hosts.
        values.setdefault("allow.insecure.cluster.listener", "true")
    if files.log_dirs:
        # Allows an operator to add a disk beside the existing ones or at the usual mount point.
        roots = dict.fromkeys(str(path.parent) for path in (*files.log_dirs, _MOUNT_POINT))
        values.setdefault("log.dirs.allowed.roots", ",".join(roots))
    source = files.config_path.name
    MODELS[files.role].from_properties(values, source=source, base_dir=str(PACKAGE_ROOT))
    return values


@dataclass(frozen=True, slots=True)
class _Common:
    """Values that all daemons of a cluster share."""

    quorum: Sequence[DaemonFiles]
    privileges: Privileges
    security: ClusterSecurity | None


def _write_configs(
    nodes: Sequence[DaemonFiles],
    extra: Mapping[int, Mapping[str, str]],
    *,
    shared: Mapping[str, str],
    common: _Common,
) -> None:
    """Write the configuration files of all nodes, or none if one is invalid.

    :param extra: further keys by node id.
    :param shared: keys for every daemon that knows them.
    :raises ConfigError: a daemon would refuse a value.
    """
    configs = []
    for files in nodes:
        own = {**_known_to(files, shared), **extra.get(files.node_id, {})}
        if common.security is not None:
            own = {**_values_of_security(files, common.security), **own}
        configs.append(_config_of(files, quorum=common.quorum, extra=own))
    for files, values in zip(nodes, configs, strict=True):
        _write_config(files, values, common.privileges)
    if common.security is not None and not common.security.directory.exists():
        common.security.write_files(common.privileges)


def _write_config(files: DaemonFiles, values: Mapping[str, str], privileges: Privileges) -> None:
    for path in (files.directory, files.metadata_dir, *files.log_dirs):
        path.mkdir(parents=True, exist_ok=True)
        privileges.give(path)
    text = format_properties(values, f"{files.name} of a local kraftjbod cluster")
    files.config_path.touch(mode=0o600)
    files.config_path.chmod(0o600)
    files.config_path.write_text(text, encoding="utf-8")
    privileges.give(files.config_path)


def _values_of_security(files: DaemonFiles, security: ClusterSecurity) -> dict[str, str]:
    values = {"super.users": f"User:{ADMIN}"}
    if files.client_port is not None:
        values |= security.broker_values(files.port, files.client_port)
    return values


def _secured(security: str, run_dir: Path, *, hosts: bool) -> ClusterSecurity:
    """Return the security of a new cluster.

    :raises ConfigError: there is no such security, or the daemons have hosts of their own, for
        whose addresses no certificate is made.
    """
    if hosts:
        raise ConfigError(
            "security is for clusters whose daemons share this machine's address: leave out hosts"
        )
    return ClusterSecurity.parse(security, run_dir)


def _read_security(security: str | None, run_dir: Path) -> ClusterSecurity | None:
    return None if security is None else ClusterSecurity.parse(security, run_dir)


async def _sees(address: str, expected: frozenset[int]) -> bool:
    """Return whether the broker at ``address`` answers and knows all expected brokers."""
    async with ClusterClient(address, request_timeout_ms=2000) as client:
        try:
            metadata = await client.refresh_metadata()
        except OperatingError:
            return False
    return expected <= metadata.brokers.keys()


def _describe(daemon: DaemonProcess) -> dict[str, Any]:
    files = daemon.files
    return {
        "name": files.name,
        "id": files.node_id,
        "role": files.role,
        "pid": daemon.pid,
        "command": list(daemon.command),
        "host": files.host,
        "ports": {
            LISTENERS[files.role]: files.port,
            **({} if files.client_port is None else {CLIENT_LISTENER: files.client_port}),
        },
        "log_dirs": [
            {"path": str(path), "directory_id": directory_id(path)} for path in files.log_dirs
        ],
        "metadata_dir": {
            "path": str(files.metadata_dir),
            "directory_id": directory_id(files.metadata_dir),
        },
        "config": str(files.config_path),
        "telemetry": str(files.telemetry_path),
        "metrics": str(files.metrics_path),
    }


def _read_daemon(run_dir: Path, entry: Mapping[str, Any], privileges: Privileges) -> DaemonProcess:
    """Return the daemon of an entry that :func:`_describe` wrote."""
    role = entry["role"]
    files = lay_out(
        run_dir,
        role,
        entry["id"],
        port=entry["ports"][LISTENERS[role]],
        client_port=entry["ports"].get(CLIENT_LISTENER),
        host=entry["host"],
        log_dirs=[Path(log_dir["path"]) for log_dir in entry["log_dirs"]],
    )
    # Files of earlier versions name no command.
    usual = CONTROLLER_COMMAND if role == "controller" else BROKER_COMMAND
    command = entry.get("command", usual)
    daemon = DaemonProcess(files, command=command, privileges=privileges, pid=entry["pid"])
    daemon.find()
    return daemon


def directory_id(path: Path) -> str | None:
    """Return the id in the directory's ``meta.properties``, or ``None`` without a readable file or
    without an id.

    :raises ConfigError: the file is malformed.
    """
    meta = path / "meta.properties"
    try:
        return parse_properties(meta.read_text(encoding="utf-8"), str(meta)).get("directory.id")
    except OSError:
        return None


def _plan_hosts(count: int, config: dict[str, str]) -> Iterator[str]:
    """Return ``count`` host addresses and set ``cluster.action.allowed.hosts`` for them."""
    planned = network_hosts.plan(count)
    # Brokers register from hosts that no controller knows yet, and tools run on this machine.
    config.setdefault(ALLOWED_HOSTS_KEY, network_hosts.allowed_hosts(planned[0]))
    return iter(planned)


def _of_internal_topics(brokers: int) -> dict[str, str]:
    """Return the replication settings of internal topics for this number of brokers."""
    replicas = min(_USUAL_REPLICAS, brokers)
    min_isr = _USUAL_MIN_ISR if replicas > _USUAL_MIN_ISR else 1
    return {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min_isr),
    }


def _processes(
    nodes: Sequence[DaemonFiles], command: Sequence[str], privileges: Privileges
) -> dict[int, DaemonProcess]:
    return {
        files.node_id: DaemonProcess(files, command=command, privileges=privileges)
        for files in nodes
    }


def _quorum(
    run_dir: Path,
    node_ids: Iterable[int],
    first_port: int,
    taken: set[int],
    reserved: list[PortReservation],
    addresses: Iterator[str],
) -> list[DaemonFiles]:
    """Lay out the controllers on ``first_port`` and below; brokers have the ports above it."""
    return [
        lay_out(
            run_dir,
            "controller",
            node_id,
            port=_free_port(first_port and first_port - number, taken, reserved, step=-1),
            host=next(addresses, HOST),
        )
        for number, node_id in enumerate(node_ids)
    ]


def _free_port(wanted: int, taken: set[int], reserved: list[PortReservation], step: int = 1) -> int:
    """Return ``wanted`` or the next free port in direction ``step``; reserve it if ``ANY_PORT``."""
    if wanted == ANY_PORT:
        reserved.append(reserve_port())
        return reserved[-1].port
    port = wanted
    while port in taken or not is_free(port):
        port += step
    taken.add(port)
    return port
