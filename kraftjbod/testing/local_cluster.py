"""WIRE. ``LocalCluster``: a cluster of real daemons for a test, on disks that fail when it says so.

::

    with LocalCluster(brokers=3, dirs=3) as cluster:
        cluster.create_topic("orders", partitions=6, replication_factor=3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        disk = cluster.broker(1).dir(0)
        disk.fail("eio")
        disk.wait_state("offline")
        ...
        disk.heal()
        disk.reattach()

``async with`` works as well. Every method waits for its result and may be called from any thread.
A coroutine should call it by ``asyncio.to_thread``, since it blocks the event loop meanwhile.

* Each controller and broker is a process, on ports that no other test process takes.
* Brokers are numbered from 1, like their node ids; log directories from 0, as in ``log.dirs``.
* All log directories are on disks of one kind: log_disks.py lists the faults of each kind.
* If the ``with`` block ends with an exception, the run directory stays. All other resources are
  removed. The next cluster removes the remains of a killed test.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir
from kraftjbod.cli.clients.replica_admin import LogDirDescription, describe_log_dirs
from kraftjbod.cli.clients.short_partitions import ShortPartition, short_partitions
from kraftjbod.core.config_model import config_text
from kraftjbod.core.errors import ConfigError, KraftJbodError, OperatingError, StartupError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.local.active_controller import active_controller
from kraftjbod.local.cluster_process import (
    CONTROLLER_ID,
    ClusterProcesses,
    require_known_config,
)
from kraftjbod.local.cluster_security import ADMIN, CLIENT, Security
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.leftover_clusters import make_run_dir, undo_left_overs
from kraftjbod.testing.log_disks import (
    DEFAULT_DISK_BYTES,
    DiskKind,
    LogDisk,
    best_kind,
    make_disk,
)

T = TypeVar("T")
Value = str | int | float
"""Value of a configuration key; ``bool`` is an ``int``."""

#: Default time limit of methods that wait for the cluster.
WAIT_S: Final = 60.0
#: Time limit for a reattachment, during which a healed disk may still fail.
_SETTLING_S: Final = 10.0
_POLL_S: Final = 0.05
_MOST_BROKERS: Final = 32
_MOST_DIRS: Final = 32
_CONTROLLERS: Final = (1, 3, 5)
_SHOWN_LINES: Final = 20
#: Time limit for a broker to answer for the report of a failed test.
_REPORT_S: Final = 5.0
_SHOWN_CHARS: Final = 500
_STATES: Final = tuple(state.value for state in LogDirState)
#: Differences from the daemons' defaults: shorter waits, and no telemetry topics.
TEST_CONFIG: Final[Mapping[str, str]] = {
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "6000",
    "log.dir.check.interval.ms": "200",
    "log.dir.io.timeout.ms": "5000",
    "log.dir.reserve.bytes": str(1024 * 1024),
    "storage.telemetry.enable": "false",
    "group.telemetry.enable": "false",
}


class ClusterTimeoutError(KraftJbodError):
    """The cluster or a broker of it did not reach a state in time; the message says which."""


class LocalCluster:
    """A cluster of processes on disks that can fail; the module docstring has an example.

    :param brokers: number of brokers, 1 to 32.
    :param dirs: log directories per broker, 1 to 32.
    :param controllers: an odd number from 1 to 5; the quorum needs a majority.
    :param disks: kind of the disks; ``auto`` is the kind with the most faults on this machine.
    :param disk_bytes: size of each ext4, xfs or tmpfs disk.
    :param config: keys for the configuration file of every daemon that knows them, in addition to
        :data:`TEST_CONFIG`. Values are strings, numbers or booleans, here and below.
    :param controller_config: further keys of the controllers.
    :param broker_config: further keys by broker.
    :param run_dir: directory for the daemons' files; by default a temporary directory.
    :param hosts: give each daemon its own host, which can be disconnected by
        ``kraftjbod.local.network_hosts.cut(daemon.files.host)``. Needs root.
    :param security: security of the listener for clients: ``ssl`` (client certificates),
        ``sasl_ssl`` or ``sasl_plaintext`` (SCRAM). :attr:`client_config` and
        :attr:`client_properties` are for clients. Excludes ``hosts``.
    :raises ConfigError: a number is out of its range, no daemon knows a key, or a value has
        another type. :meth:`start` reports values that a daemon refuses.
    """

    def __init__(
        self,
        *,
        brokers: int = 3,
        dirs: int = 3,
        controllers: int = 1,
        disks: DiskKind | Literal["auto"] = "auto",
        disk_bytes: int = DEFAULT_DISK_BYTES,
        config: Mapping[str, Value] | None = None,
        controller_config: Mapping[str, Value] | None = None,
        broker_config: Mapping[int, Mapping[str, Value]] | None = None,
        run_dir: Path | None = None,
        hosts: bool = False,
        security: Security | None = None,
    ) -> None:
        if not (1 <= brokers <= _MOST_BROKERS and 1 <= dirs <= _MOST_DIRS):
            raise ConfigError(
                f"brokers={brokers}, dirs={dirs}: from 1 to {_MOST_BROKERS} brokers with 1 to "
                f"{_MOST_DIRS} log directories each"
            )
        if controllers not in _CONTROLLERS:
            raise ConfigError(f"controllers={controllers}: one of {_CONTROLLERS}")
        texts = _texts(config, "config")
        of_controller = _texts(controller_config, "controller_config")
        of_broker = {
            broker: _texts(own, f"broker_config[{broker}]")
            for broker, own in (broker_config or {}).items()
        }
        require_known_config(texts, {CONTROLLER_ID: of_controller, **of_broker})
        self._counts = brokers, dirs
        self._controllers = controllers
        self._disk_kind: DiskKind = best_kind() if disks == "auto" else disks
        self._disk_bytes = disk_bytes
        self._config = {**TEST_CONFIG, **texts}
        self._controller_config = of_controller
        self._broker_config = of_broker
        self._given_run_dir = run_dir
        self._hosts = hosts
        self._security = security
        self._processes: ClusterProcesses | None = None
        self._brokers: tuple[Broker, ...] = ()
        self._disks: list[LogDisk] = []
        self._loop = _LoopThread()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(keep=kind is not None)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close, keep=kind is not None)

    def start(self) -> None:
        """Create and format disks, start every daemon and wait until all serve.

        :raises StartupError: a daemon failed; the message has its last events. Or the cluster was
            started before.
        :raises DiskKitError: this machine cannot create such disks.
        """
        if self._processes is not None:
            raise StartupError("this cluster is started already")
        undo_left_overs()
        run_dir = self._given_run_dir or make_run_dir()
        run_dir.mkdir(parents=True, exist_ok=True)
        # Daemons may run as another user.
        run_dir.chmod(0o755)
        try:
            self._lay_out(run_dir)
            self._loop.run(self.processes.start(timeout_s=WAIT_S))
        except BaseException:
            self.close(keep=True)
            raise

    def close(self, *, keep: bool = False) -> None:
        """Kill every daemon and remove the disks.

        :param keep: keep the run directory with the daemons' logs. A given ``run_dir`` stays in any
            case.
        """
        processes, self._processes = self._processes, None
        try:
            if processes is not None:
                # A daemon in the middle of an operation on a hanging disk cannot end.
                for disk in self._disks:
                    if disk.fault in (DiskFault.HANG, DiskFault.SLOW):
                        disk.heal()
                processes.kill()
                processes.release_ports()
        finally:
            with contextlib.ExitStack() as stack:
                stack.callback(self._loop.close)
                for disk in self._disks:
                    stack.callback(disk.close)
            self._disks.clear()
        if processes is not None and not keep and self._given_run_dir is None:
            shutil.rmtree(processes.run_dir)

    @property
    def processes(self) -> ClusterProcesses:
        """The processes of the cluster, for operations that this class does not have.

        :raises StartupError: the cluster is not started, or is closed.
        """
        if self._processes is None:
            raise StartupError("this cluster is not started, or closed already")
        return self._processes

    @property
    def run_dir(self) -> Path:
        return self.processes.run_dir

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients: ``127.0.0.1:20001,127.0.0.1:20002,...``."""
        return self.processes.bootstrap_servers

    @property
    def client_properties(self) -> Path | None:
        """File with the settings of the user ``client`` for Kafka's clients and these tools; None
        without security. ``admin.properties`` beside it is for the super user ``admin``.
        """
        security = self.processes.security
        return None if security is None else security.properties_path()

    @property
    def client_config(self) -> dict[str, str]:
        """Settings of librdkafka for the user ``client``, ``bootstrap.servers`` included."""
        return self.client_config_of(CLIENT)

    def client_config_of(self, user: str) -> dict[str, str]:
        """Return settings of librdkafka for ``user``, ``admin`` or ``client``."""
        security = self.processes.security
        own = {} if security is None else security.library_config(user)
        return {"bootstrap.servers": self.bootstrap_servers, **own}

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return self._brokers

    @property
    def controllers(self) -> tuple[DaemonProcess, ...]:
        """The controllers' processes, with ``kill()`` and ``start()``."""
        return tuple(self.processes.controllers.values())

    def active_controller(self, *, timeout_s: float = WAIT_S) -> DaemonProcess:
        """Wait until a controller is active, and return it.

        :raises ClusterTimeoutError: no controller is active after ``timeout_s``.
        """
        active: list[DaemonProcess] = []

        def ask() -> bool:
            found = active_controller(self.controllers)
            active[:] = [] if found is None else [found]
            return bool(active)

        self.wait("a controller to be active", ask, timeout_s=timeout_s)
        return active[0]

    def broker(self, broker_id: int) -> Broker:
        """Return the broker with the id ``broker_id``, from 1.

        :raises ConfigError: there is no broker with that id.
        """
        if not 1 <= broker_id <= len(self._brokers):
            raise ConfigError(f"there is no broker {broker_id}: 1 to {len(self._brokers)}")
        return self._brokers[broker_id - 1]

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, Value] | None = None,
    ) -> None:
        """Create a topic and wait until every replica is in sync and on a disk.

        :param replication_factor: by default 3, or the number of brokers if that is less.
        :raises OperatingError: the cluster refused the request.
        :raises ClusterTimeoutError: the topic exists, but a replica is not in sync or on a disk
            after 60 s.
        """
        factor = replication_factor or min(3, len(self._brokers))
        texts = _texts(config, "config")

        async def create(client: ClusterClient) -> None:
            await client.retry(client.refresh_metadata)
            await create_topic(
                client,
                name,
                partitions=partitions,
                replication_factor=factor,
                configs=texts,
            )

        self._ask(create)
        self.wait_in_sync(name)
        self.wait(f"every replica of {name} to be on a disk", lambda: self._on_disks(name, factor))

    def wait_in_sync(self, topic: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until every replica of the topic is in sync.

        :raises ClusterTimeoutError: a replica is not in sync after ``timeout_s``.
        """
        self.wait(
            f"every replica of {topic} to be in sync",
            lambda: self._is_in_sync(topic),
            timeout_s=timeout_s,
        )

    def wait(
        self, what: str, condition: Callable[[], object], *, timeout_s: float = WAIT_S
    ) -> None:
        """Poll until ``condition`` is true. If it raises a :class:`KraftJbodError`, it counts as
        false.

        :param what: what the call waits for, for the error.
        :raises ClusterTimeoutError: it is not true after ``timeout_s``; the message names ``what``,
            the last error, and the states of the daemons.
        """
        deadline = time.monotonic() + timeout_s
        trouble = "it never was so"
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except KraftJbodError as e:
                trouble = str(e)
            time.sleep(_POLL_S)
        raise ClusterTimeoutError(
            f"waited {timeout_s:.0f} s for {what}: {trouble}\n{self.last_words()}"
        )

    def last_words(self) -> str:
        """Return the last lines of every daemon's log, and the partitions that refuse writes, for
        an error message."""
        lines_out = []
        for daemon in self.processes.daemons:
            path = daemon.files.telemetry_path
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            state = "runs" if daemon.is_running else f"ended with {daemon.exit_code}"
            lines_out.append(f"--- {daemon.files.name} {state}; {path}")
            lines_out += [line[:_SHOWN_CHARS] for line in lines[-_SHOWN_LINES:]]
        lines_out += self._partitions_that_refuse_writes()
        return "\n".join(lines_out)

    def _partitions_that_refuse_writes(self) -> list[str]:
        """Return one line per partition; none if no broker answers in time."""

        async def ask(client: ClusterClient) -> list[ShortPartition]:
            async with asyncio.timeout(_REPORT_S):
                return await short_partitions(client)

        try:
            short = self._ask(ask)
        except (KraftJbodError, TimeoutError):
            return []
        return [f"--- {partition}" for partition in short[:_SHOWN_LINES]]

    def _lay_out(self, run_dir: Path) -> None:
        brokers, dirs = self._counts
        homes = [
            run_dir / f"broker-{broker}" / f"disk-{number}"
            for broker, number in itertools.product(range(1, brokers + 1), range(dirs))
        ]
        with ThreadPoolExecutor() as pool:
            making = [pool.submit(self._make_disk, home) for home in homes]
        # All threads have ended. Created disks are removed even if another could not be created.
        self._disks = [made.result() for made in making if made.exception() is None]
        for made in making:
            made.result()
        of_broker = {
            broker: self._disks[(broker - 1) * dirs : broker * dirs]
            for broker in range(1, brokers + 1)
        }
        self._processes = ClusterProcesses.create(
            run_dir,
            brokers=brokers,
            controllers=self._controllers,
            config=self._config,
            controller_config=self._controller_config,
            broker_config=self._broker_config,
            hosts=self._hosts,
            security=self._security,
            log_dirs={broker: [disk.path for disk in disks] for broker, disks in of_broker.items()},
        )
        self._brokers = tuple(
            Broker(self, self._processes.brokers[broker], disks)
            for broker, disks in of_broker.items()
        )

    def _make_disk(self, home: Path) -> LogDisk:
        return make_disk(self._disk_kind, home=home, size_bytes=self._disk_bytes)

    def _ask(self, question: Callable[[ClusterClient], Coroutine[Any, Any, T]]) -> T:
        async def ask() -> T:
            async with self._make_client() as client:
                return await question(client)

        return self._loop.run(ask())

    def _make_client(self) -> ClusterClient:
        """Return a client of the user ``admin``."""
        security = self.processes.security
        if security is None:
            return ClusterClient(self.bootstrap_servers)
        source = str(security.properties_path(ADMIN))
        settings = security.settings_of(ADMIN)
        return ClusterClient(
            self.bootstrap_servers,
            dialer=settings.make_dialer(source),
            login=settings.make_login(source),
        )

    def _is_in_sync(self, topic: str) -> bool:
        async def ask(client: ClusterClient) -> bool:
            metadata = await client.refresh_metadata([topic])
            partitions = metadata.topic(topic).partitions.values()
            return all(p.leader >= 0 and sorted(p.isr) == sorted(p.replicas) for p in partitions)

        return self._ask(ask)

    def _on_disks(self, topic: str, factor: int) -> bool:
        """Return whether all replicas have a directory; new ones count as in sync without one."""

        async def ask(client: ClusterClient) -> bool:
            metadata = await client.refresh_metadata([topic])
            found = 0
            for broker_id in metadata.brokers:
                for log_dir in await describe_log_dirs(client, broker_id):
                    found += sum(replica.topic == topic for replica in log_dir.replicas)
            return found == factor * len(metadata.topic(topic).partitions)

        return self._ask(ask)


class Broker:
    """One broker of a :class:`LocalCluster`."""

    def __init__(self, cluster: LocalCluster, process: DaemonProcess, disks: list[LogDisk]) -> None:
        self._cluster = cluster
        #: The broker's process: its pid, its files, its exit code.
        self.process = process
        self.dirs = tuple(BrokerDir(cluster, self, disk) for disk in disks)

    def __repr__(self) -> str:
        return f"<Broker {self.id} at {self.address}>"

    @property
    def id(self) -> int:
        return self.process.files.node_id

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return self.process.client_address

    @property
    def is_running(self) -> bool:
        return self.process.is_running

    def dir(self, number: int) -> BrokerDir:
        """Return the log directory ``number``, from 0.

        :raises ConfigError: there is no directory with that number.
        """
        if not 0 <= number < len(self.dirs):
            raise ConfigError(
                f"broker {self.id} has no directory {number}: 0 to {len(self.dirs) - 1}"
            )
        return self.dirs[number]

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended."""
        self.process.kill()

    def stop(self) -> None:
        """Stop the broker in an orderly way: its leaders move to other brokers first.

        :raises ClusterTimeoutError: the broker did not stop in time and was killed.
        """
        if not self._cluster._loop.run(self.process.stop(WAIT_S)):
            raise ClusterTimeoutError(f"broker {self.id} did not stop in {WAIT_S:.0f} s")

    def start(self) -> None:
        """Start the broker with its data, and wait until all running brokers serve.

        :raises StartupError: a broker ended, or does not serve in time.
        """
        self.process.start()
        self._cluster._loop.run(self._cluster.processes.wait_healthy(timeout_s=WAIT_S))

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return the logged events, oldest first, restricted to those called ``name`` if given."""
        return self.process.events(name)


class BrokerDir:
    """One log directory of a broker: breaks and repairs its disk, and asks the broker for its
    state."""

    def __init__(self, cluster: LocalCluster, broker: Broker, disk: LogDisk) -> None:
        self._cluster = cluster
        self._broker = broker
        self.disk = disk

    def __repr__(self) -> str:
        return f"<directory of broker {self._broker.id} on {self.disk}>"

    @property
    def path(self) -> Path:
        return self.disk.path

    @property
    def state(self) -> str:
        """Return the state that the broker reports for the directory: ``online``, ``saturated``,
        ``stalled`` or ``offline``.

        :raises OperatingError: the broker did not answer.
        """
        return self.describe().state or "offline"

    def describe(self) -> LogDirDescription:
        """Return the broker's description of the directory.

        :raises OperatingError: the broker does not run, did not answer, or forgot the directory.
        """
        self._require_running()

        async def ask(client: ClusterClient) -> LogDirDescription:
            await client.retry(client.refresh_metadata)
            dirs = await describe_log_dirs(client, self._broker.id)
            found = next((one for one in dirs if one.path == str(self.path)), None)
            if found is None:
                raise OperatingError(f"the broker has no directory {self.path}: was it forgotten?")
            return found

        return self._cluster._ask(ask)

    def fail(self, fault: DiskFault | str) -> None:
        """Inject a fault into the disk. Returns before the broker notices it.

        :raises DiskKitError: this kind of disk does not support the fault, or the disk has one
            already.
        """
        self.disk.fail(fault)

    def heal(self) -> None:
        """Repair the disk. An offline directory stays offline until :meth:`reattach`.

        :raises DiskKitError: the broker does not close the files of a disk that must be repaired.
        """
        self.disk.heal()

    def reattach(self) -> None:
        """Let the running broker take the directory online again, and wait until it has.

        :raises OperatingError: the broker refused, does not run, or did not finish within 60 s.
        """
        self._order("reattach")

    def replace(self) -> None:
        """Let the running broker accept the directory as a new, empty one: after ``wipe``.

        The replicas of the old disk are recreated from other brokers.

        :raises OperatingError: the broker refused, for example because a partition has no other
            replica.
        """
        self._order("forget")
        self._order("add")

    def wait_state(self, state: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until the broker reports ``state`` for the directory: ``online``, ``saturated``,
        ``stalled`` or ``offline``.

        :raises ConfigError: there is no such state.
        :raises ClusterTimeoutError: the directory is not in that state after ``timeout_s``.
        """
        if state not in _STATES:
            raise ConfigError(f"there is no state {state!r}: {', '.join(_STATES)}")
        self._cluster.wait(
            f"{self} to be {state}", lambda: self.state == state, timeout_s=timeout_s
        )

    def _require_running(self) -> None:
        broker = self._broker
        if not broker.is_running:
            raise OperatingError(
                f"broker {broker.id} does not run (it ended with exit code "
                f"{broker.process.exit_code}), so nothing can be asked about {self.path}: start "
                f"the broker with cluster.broker({broker.id}).start()"
            )

    def _order(self, operation: str) -> None:
        self._require_running()
        change = LogDirChange(operation=operation, broker=self._broker.id, target=str(self.path))

        async def ask(client: ClusterClient) -> None:
            await client.retry(
                lambda: change_log_dir(client, change, timeout_ms=int(WAIT_S * 1000)),
                # A hanging operation may still have to end.
                timeout_ms=int(_SETTLING_S * 1000),
            )

        self._cluster._ask(ask)


def _texts(config: Mapping[str, Value] | None, what: str) -> dict[str, str]:
    """Convert values to the text of a properties file.

    :raises ConfigError: a value is neither string, number nor boolean.
    """
    for key, value in (config or {}).items():
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"{what}: {key} is {value!r}, of type {type(value).__name__}: give a text, a "
                "number, True or False"
            )
    return {key: config_text(value) for key, value in (config or {}).items()}


class _LoopThread:
    """An event loop in its own thread, so that callers with and without a loop can use it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="local-cluster", daemon=True
            )
            self._thread.start()
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
