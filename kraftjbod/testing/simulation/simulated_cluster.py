"""WIRE. ``SimulatedCluster``: whole daemons in one process and one thread, under virtual time.

::

    with SimulatedCluster(seed=7) as cluster:
        cluster.start()
        client = cluster.client("alice")
        client.run(create_topic(client.kafka, "orders", partitions=12, replication_factor=3))
        cluster.broker(1).kill()
        cluster.run_for(5_000)
        cluster.broker(1).start()
        cluster.disks["/broker-2/d1"].gate.close()      # the disk hangs
        cluster.network.partition("broker-2", "controller-100")
        cluster.run_for(10_000)
        print(cluster.trace.hash)

* The daemons are those of ``daemon/``, unchanged. Loop, clock, randomness, disks, threads and
  network are replaced. The same seed gives the same trace.
* Hosts: ``controller-100``, ``broker-1`` and so on, and clients by the names given to them.
* Disks: ``/broker-1/d0`` and so on, one per log directory, and ``/broker-1/meta`` for the metadata
  directory of a node.
* Virtual time passes only in :meth:`SimulatedCluster.run_for`, :meth:`SimulatedClient.run` and
  similar methods. Between them everything is paused, and may be inspected or broken.
* :attr:`SimulatedBroker.wiring` and :attr:`SimulatedController.state` give access to a daemon.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.controller_client import ControllerClient
from kraftjbod.core import telemetry
from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.core.ids import BrokerId, DirectoryId, Uuid
from kraftjbod.core.metadata_version import (
    DEFAULT_METADATA_VERSION,
    KRAFT_VERSION,
    MetadataVersion,
)
from kraftjbod.daemon.broker_server import BrokerServer
from kraftjbod.daemon.controller_server import ControllerServer
from kraftjbod.daemon.wiring.broker_wiring import BrokerWiring
from kraftjbod.metadata.state import MetadataState
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet
from kraftjbod.storage.identity.bootstrap import write_bootstrap
from kraftjbod.storage.identity.known_dirs import KnownDirs, write_known_dirs
from kraftjbod.storage.meta_properties import MetaProperties, write_meta_properties
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_network import MemoryNetwork
from kraftjbod.testing.simulation.simulated_disk import SimulatedDisk
from kraftjbod.testing.simulation.simulated_host import SimulatedHost, SimulatedProcess, live
from kraftjbod.testing.simulation.trace import Trace
from kraftjbod.testing.simulation.world import World

T = TypeVar("T")

CONTROLLER_ID: Final = 100
OBSERVER_ID: Final = 200
_PORT: Final = 9092
_CONTROLLER_PORT: Final = 9093
_METADATA: Final = "meta"
#: Differences from the daemons' defaults, for small disks in memory.
SIMULATION_CONFIG: Final[Mapping[str, str]] = {
    "log.dir.reserve.bytes": "65536",
    "log.segment.bytes": "65536",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "storage.telemetry.enable": "false",
    "group.telemetry.enable": "false",
    # Host names are not resolved here, and clients change the voters.
    "cluster.action.allowed.hosts": "*",
}


class SimulationTimeoutError(KraftJbodError):
    """An awaited condition was not met within the given virtual time."""


class SimulatedNode(SimulatedHost, ABC):
    """A host with a daemon; ``config`` is its configuration, read at each start."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        name: str,
        node_id: int,
        properties: Mapping[str, str],
    ) -> None:
        super().__init__(cluster.world, cluster.network, name, self._live)
        self.node_id = node_id
        self.properties = dict(properties)

    @abstractmethod
    async def _live(self, process: SimulatedProcess) -> int:
        """Run the daemon and return its exit code."""


class SimulatedController(SimulatedNode):
    """A host with a controller; ``daemon`` is that of its newest process, None until that has
    begun."""

    #: The daemon of the newest process.
    daemon: ControllerServer | None = None
    #: Directory id of the metadata disk since it was formatted last.
    directory_id: DirectoryId
    #: Whether its disk was formatted with ``--standalone`` by mistake, as its own quorum.
    is_standalone = False

    def start(self) -> None:
        self.daemon = None
        super().start()

    @property
    def metadata_disk(self) -> SimulatedDisk:
        return self.disks[f"/{self.name}/{_METADATA}"]

    @property
    def is_active(self) -> bool:
        """Whether the controller considers itself active; another one may be active already. False
        if its process does not run."""
        controller = None if self.daemon is None or not self.is_up else self.daemon.controller
        return controller is not None and controller.is_active

    @property
    def state(self) -> MetadataState | None:
        """The metadata that this controller has replayed; None before that, and if its process does
        not run."""
        controller = None if self.daemon is None or not self.is_up else self.daemon.controller
        return None if controller is None else controller.state

    async def _live(self, process: SimulatedProcess) -> int:
        config = ControllerConfig.from_properties(self.properties, source=self.name, base_dir="/")
        environment = self.environment(process)
        self.daemon = ControllerServer(config, environment)
        return await live(self, "controller", self.daemon, config, environment)


class SimulatedBroker(SimulatedNode):
    """A host with a broker; ``daemon`` is that of its newest process, None until that has begun."""

    #: The daemon of the newest process.
    daemon: BrokerServer | None = None

    def start(self) -> None:
        self.daemon = None
        super().start()

    @property
    def is_serving(self) -> bool:
        """Whether the broker accepts clients."""
        return self.is_up and self.daemon is not None and self.daemon.is_open

    @property
    def wiring(self) -> BrokerWiring | None:
        """The parts of the broker (``daemon/wiring``), for inspection; None if it has none now."""
        return None if self.daemon is None or not self.is_up else self.daemon.wiring

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The paths of its log directories, which are also the paths of their disks."""
        return tuple(self.properties["log.dirs"].split(","))

    async def _live(self, process: SimulatedProcess) -> int:
        config = BrokerConfig.from_properties(self.properties, source=self.name, base_dir="/")
        environment = self.environment(process)
        self.daemon = BrokerServer(config, environment)
        return await live(self, "broker", self.daemon, config, environment)


class SimulatedClient(SimulatedHost):
    """A host without a daemon, on which a test runs coroutines and Kafka clients."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        super().__init__(cluster.world, cluster.network, name, self._wait)
        self._cluster = cluster
        self._kafka: ClusterClient | None = None

    @property
    def kafka(self) -> ClusterClient:
        """The host's client (``cli/clients``), shared by all users until the host is killed."""
        if self._kafka is None:
            self._kafka = self.new_kafka()
        return self._kafka

    def new_kafka(self, **options: Any) -> ClusterClient:
        """Return a new client with its own connections and ``options``."""
        rng = self.world.rng_of(f"client {self.name}")
        options = {"client_id": self.name, "random_unit": rng.random, **options}
        return ClusterClient(self._cluster.bootstrap_servers, **options)

    def new_controller_client(self, *, timeout_ms: int = 10_000) -> ControllerClient:
        """Return a client of the RPC between brokers and controllers."""
        rng = self.world.rng_of(f"rpc {self.name}")
        addresses = ",".join(f"{one.name}:{_CONTROLLER_PORT}" for one in self._cluster.controllers)
        return ControllerClient(addresses, timeout_ms=timeout_ms, random_unit=rng.random)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start ``work`` as a task, which proceeds whenever virtual time passes."""
        assert self.process is not None, f"{self.name} is down"
        return self.process.loop.create_task(work)

    def run(self, work: Coroutine[Any, Any, T], *, timeout_ms: int = 120_000) -> T:
        """Let virtual time pass until ``work`` is done; return its result or raise its exception.

        :raises SimulationTimeoutError: ``work`` is not done after ``timeout_ms``.
        """
        return self._cluster.run_until(self.begin(work), timeout_ms=timeout_ms)

    async def _wait(self, process: SimulatedProcess) -> None:
        self._kafka = None
        await asyncio.get_running_loop().create_future()


class SimulatedCluster:
    """A cluster under virtual time; the module docstring has an example.

    :param seed: seed of all random choices.
    :param controllers: number of voters, which is odd; the first is node 100.
    :param observers: controllers that follow the metadata and never vote; the first is node 200.
        Start them only once the metadata log names the voters (``kraft.version`` 1). Before that,
        the others refuse a controller that no configuration file names.
    :param log_dirs: number of log directories per broker.
    :param metadata_version: the level with which controllers are formatted.
    :param config: keys for every daemon, in addition to :data:`SIMULATION_CONFIG`.
    :param trace: receives the lines; by default a trace that keeps the newest ones.
    """

    def __init__(
        self,
        seed: int,
        controllers: int = 1,
        brokers: int = 3,
        log_dirs: int = 3,
        *,
        observers: int = 0,
        metadata_version: MetadataVersion = DEFAULT_METADATA_VERSION,
        config: Mapping[str, str] | None = None,
        trace: Trace | None = None,
    ) -> None:
        if controllers < 1 or controllers % 2 == 0:
            raise ConfigError(f"controllers={controllers}: 1, 3 or 5 can agree")
        self.world = World(seed, trace)
        self.network = MemoryNetwork(self.world)
        self.config = {**SIMULATION_CONFIG, **(config or {})}
        self._rng = self.world.rng_of("cluster")
        self.cluster_id = str(Uuid.random(self._rng.randbytes))
        self.controllers: list[SimulatedController] = []
        self.observers: list[SimulatedController] = []
        self.brokers: dict[int, SimulatedBroker] = {}
        self.clients: dict[str, SimulatedClient] = {}
        self._disk_count = 0
        self.metadata_version = metadata_version
        #: Whether the metadata log names the voters (``kraft.version`` 1); set by the test.
        self.names_voters = False
        self._voters = ",".join(
            f"{CONTROLLER_ID + i}@controller-{CONTROLLER_ID + i}:{_CONTROLLER_PORT}"
            for i in range(controllers)
        )
        for i in range(controllers):
            self.controllers.append(self._add_controller(CONTROLLER_ID + i))
        for i in range(observers):
            self.observers.append(self._add_controller(OBSERVER_ID + i))
            self._follow_only(self.observers[-1])
        for broker_id in range(1, brokers + 1):
            self._add_broker(broker_id, log_dirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- processes and hosts ----------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        return self.world.trace

    @property
    def now_ms(self) -> int:
        """Virtual milliseconds since the world began."""
        return self.world.now_us // 1000

    @property
    def bugs(self) -> list[str]:
        """Exceptions that daemons or clients did not handle."""
        return self.trace.bugs

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{broker.name}:{_PORT}" for broker in self.brokers.values())

    @property
    def hosts(self) -> dict[str, SimulatedHost]:
        """All hosts by name: controllers, observers, brokers, clients."""
        controllers = (*self.controllers, *self.observers)
        found: dict[str, SimulatedHost] = {one.name: one for one in controllers}
        found.update({one.name: one for one in self.brokers.values()})
        found.update(self.clients)
        return found

    @property
    def disks(self) -> dict[str, SimulatedDisk]:
        """All disks by path."""
        return {path: disk for host in self.hosts.values() for path, disk in host.disks.items()}

    def broker(self, node_id: int) -> SimulatedBroker:
        """Return the broker with that node id; ids start at 1."""
        return self.brokers[node_id]

    def controller(self, index: int = 0) -> SimulatedController:
        """Return a voter by its index; its ``is_active`` says whether it is the leader."""
        return self.controllers[index]

    def replace_metadata_disk(
        self,
        host: SimulatedController,
        *,
        is_voter: bool = False,
        is_standalone: bool = False,
    ) -> None:
        """Replace the disk by an empty one, formatted for a controller that is to be added.

        :param is_voter: its configuration file still names the voters, including itself.
        :param is_standalone: the disk is formatted with ``--standalone`` by mistake.
        """
        host.metadata_disk.faults.begin_fault(DiskFault.WIPE)
        self._format_controller(host, is_standalone=is_standalone)
        if not is_voter:
            self._follow_only(host)

    def _follow_only(self, host: SimulatedController) -> None:
        """Let the configuration file name bootstrap servers instead of voters."""
        host.properties.pop("controller.quorum.voters", None)
        host.properties["controller.quorum.bootstrap.servers"] = ",".join(
            f"{one.name}:{_CONTROLLER_PORT}" for one in self.controllers
        )

    def client(self, name: str) -> SimulatedClient:
        """Return the client host of that name; the first call creates and starts it. A later call
        does not start a killed host again."""
        if name not in self.clients:
            self.clients[name] = SimulatedClient(self, name)
            self.clients[name].start()
        return self.clients[name]

    # --- time ------------------------------------------------------------------------------------

    def start(self, *, timeout_ms: int = 60_000) -> None:
        """Start all voters and brokers, but no observers, and wait until all brokers serve.

        :raises SimulationTimeoutError: a broker does not serve after ``timeout_ms`` of simulated
            time.
        """
        for controller in self.controllers:
            controller.start()
        for broker in self.brokers.values():
            broker.start()
        self.wait_for(
            lambda: all(broker.is_serving for broker in self.brokers.values()),
            "all brokers serve",
            timeout_ms=timeout_ms,
        )

    def run_for(self, ms: int) -> None:
        """Let ``ms`` milliseconds of virtual time pass."""
        self._run_to(self.world.now_us + ms * 1000)

    def run_until(self, task: asyncio.Task[T], *, timeout_ms: int = 120_000) -> T:
        """Let virtual time pass until ``task`` is done; return its result or raise its error.

        :raises SimulationTimeoutError: it is not done after ``timeout_ms``; the task continues.
        """
        self._run_to(self.world.now_us + timeout_ms * 1000, task)
        if not task.done():
            raise SimulationTimeoutError(f"{task!r} is not done after {timeout_ms} ms")
        return task.result()

    def wait_for(
        self, is_so: Callable[[], bool], what: str, *, timeout_ms: int = 60_000, step_ms: int = 20
    ) -> None:
        """Let virtual time pass until ``is_so`` is true, checked every ``step_ms``.

        :raises SimulationTimeoutError: it is not true after ``timeout_ms``; names ``what``.
        """
        until_ms = self.now_ms + timeout_ms
        while not is_so():
            if self.now_ms >= until_ms:
                raise SimulationTimeoutError(f"not within {timeout_ms} ms: {what}")
            self.run_for(step_ms)

    def close(self) -> None:
        """End all processes, and release their resources."""
        for host in self.hosts.values():
            host.kill()
        with telemetry.sent_to(lambda _event: None):
            for host in self.hosts.values():
                for process in host.past:
                    process.bury()

    def _run_to(self, until_us: int, stop: asyncio.Future[Any] | None = None) -> None:
        with telemetry.sent_to(self._take_event):
            self.world.run_until(until_us, stop)

    def _take_event(self, event: Mapping[str, Any]) -> None:
        running = self.world.running
        if running is not None and not running.is_dead:
            self.trace.event(running.name, event)

    # --- building --------------------------------------------------------------------------------

    def _add_controller(self, node_id: int) -> SimulatedController:
        name = f"controller-{node_id}"
        metadata_dir = f"/{name}/{_METADATA}"
        properties = {
            "process.roles": "controller",
            "node.id": str(node_id),
            "controller.quorum.voters": self._voters,
            "listeners": f"CONTROLLER://{name}:{_CONTROLLER_PORT}",
            "log.dirs": metadata_dir,
            **self._known(ControllerConfig.keys()),
        }
        host = SimulatedController(self, name, node_id, properties)
        self._disk_count += 1
        host.add_disk(metadata_dir, self._disk_count)
        self._format_controller(host)
        return host

    def _format_controller(self, host: SimulatedController, *, is_standalone: bool = False) -> None:
        """Format an empty disk of a controller."""
        vfs, path = host.metadata_disk.vfs, host.metadata_disk.path
        host.directory_id = self._format(host, path, [path])[path]
        host.is_standalone = is_standalone
        features, voters = dict(self.metadata_version.default_features), None
        if is_standalone:
            key = ReplicaKey(BrokerId(host.node_id), host.directory_id)
            voters = VoterSet((Voter(key, (host.properties["listeners"],)),)).encode()
            features[KRAFT_VERSION] = 1
        write_bootstrap(vfs, path, features, voters)

    def _add_broker(self, broker_id: int, log_dirs: int) -> None:
        name = f"broker-{broker_id}"
        metadata_dir = f"/{name}/{_METADATA}"
        paths = [f"/{name}/d{i}" for i in range(log_dirs)]
        properties = {
            "process.roles": "broker",
            "node.id": str(broker_id),
            "controller.quorum.voters": self._voters,
            "listeners": f"PLAINTEXT://{name}:{_PORT}",
            "log.dirs": ",".join(paths),
            "metadata.log.dir": metadata_dir,
            **self._known(BrokerConfig.keys()),
        }
        host = SimulatedBroker(self, name, broker_id, properties)
        self.brokers[broker_id] = host
        for path in (metadata_dir, *paths):
            self._disk_count += 1
            host.add_disk(path, self._disk_count)
        self._format(host, metadata_dir, [metadata_dir, *paths])

    def _known(self, keys: frozenset[str]) -> dict[str, str]:
        return {key: value for key, value in self.config.items() if key in keys}

    def _format(
        self, host: SimulatedNode, metadata_dir: str, paths: list[str]
    ) -> dict[str, DirectoryId]:
        """Format as the storage tool does; return the new directory ids by path."""
        ids: dict[str, DirectoryId] = {}
        for path in paths:
            vfs = host.disks[path].vfs
            ids[path] = DirectoryId.random(self._rng.randbytes)
            vfs.make_dirs(path)
            properties = MetaProperties(
                cluster_id=self.cluster_id,
                node_id=BrokerId(host.node_id),
                directory_id=ids[path],
            )
            write_meta_properties(vfs, path, properties)
        write_known_dirs(host.disks[metadata_dir].vfs, metadata_dir, KnownDirs(ids=ids))
        return ids
