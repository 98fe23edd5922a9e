"""A broker without a daemon: real components on memory disks, with metadata that the test supplies.

The controller is scripted: it accepts every directory and every in-sync set, and hands out producer
ids. ``controller.seen`` lists the requests that it received.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicPartition,
    Uuid,
)
from kraftjbod.core.node_config import Endpoint
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.daemon.wiring.broker_wiring import BrokerWiring, build_wiring
from kraftjbod.metadata.records import (
    ConfigRecord,
    Listener,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)
from kraftjbod.metadata.state import MetadataDelta
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.protocol.kafka_codec import Message, RequestHeader
from kraftjbod.protocol.messages import FetchRequest, ProduceRequest
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    AlterPartitionReassignmentsResponseRpc,
    ListPartitionReassignmentsRequestRpc,
    ListPartitionReassignmentsResponseRpc,
)
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequestRpc,
    UpdateFeaturesResponseRpc,
)
from kraftjbod.storage.checkpoints import parse_clean_shutdown
from kraftjbod.storage.dir_names import CLEAN_SHUTDOWN_FILE
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    CLUSTER_ID,
    ManualClock,
    directory_id,
    format_dir,
    open_dir,
    random_bytes_of,
)
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.gates import no_bugs
from tests.unit.broker.scripted_controller import RealClock, ScriptedController, let_in, serving

TOPIC = "t"
TOPIC_ID = TopicId(b"t" * 16)
TP = TopicPartition(TOPIC, 0)
LISTENER = "PLAINTEXT"
CONNECTION = ConnectionContext(peer="127.0.0.1:9", listener_name=LISTENER)
#: The broker epoch of the incarnation before the rig, in which its directories were closed.
CLOSED_IN = BrokerEpoch(1)
#: No test takes this long except on an overloaded machine; produce requests of tests wait 20 s.
TIMEOUT_MS = 30_000


def topic(name: str = TOPIC, topic_id: TopicId = TOPIC_ID) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id)


def partition(
    index: int = 0,
    *,
    replicas: Sequence[int] = (1,),
    directories: Sequence[DirectoryId] | None = None,
    isr: Sequence[int] | None = None,
    leader: int = 1,
    epoch: int = 0,
    topic_id: TopicId = TOPIC_ID,
) -> PartitionRecord:
    """A partition; by default every replica is in the first directory of its broker."""
    return PartitionRecord(
        topic_id=topic_id,
        partition_id=index,
        replicas=tuple(map(BrokerId, replicas)),
        directories=tuple(directories or (dir_of(b, 1) for b in replicas)),
        isr=tuple(map(BrokerId, replicas if isr is None else isr)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch),
    )


def dir_of(broker_id: int, number: int) -> DirectoryId:
    """Id of the nth directory of a broker."""
    return directory_id(10 * broker_id + number)


class BrokerRig:
    """A broker of :func:`brokers`. ``dirs`` are numbered from 1 in paths and ids."""

    def __init__(
        self,
        broker_id: int,
        vfss: Sequence[MemVfs | FaultVfs],
        controller: ScriptedController,
        overrides: dict[str, str],
    ) -> None:
        self.broker_id = BrokerId(broker_id)
        self.controller = controller
        self.tasks = BackgroundTasks()
        self.around = Environment(random_bytes=random_bytes_of(broker_id))
        self.failures = LogDirFailureChannel(max_dirs=99)
        #: Clock of the watches of the directories.
        self.disk_clock = ManualClock()
        self.dirs: list[LogDir] = []
        self.disks_at: dict[str, Vfs] = {f"/d{n}": vfs for n, vfs in enumerate(vfss, 1)}
        for n, vfs in enumerate(vfss, 1):
            number = 10 * broker_id + n
            if not vfs.exists(f"/d{n}/meta.properties"):
                format_dir(vfs, f"/d{n}", number)
            log_dir = open_dir(vfs, f"/d{n}", number, channel=self.failures, clock=self.disk_clock)
            mark = vfs.read_if_exists(f"/d{n}/{CLEAN_SHUTDOWN_FILE}") or b"{}"
            log_dir.clean_shutdown = parse_clean_shutdown(bytes(mark).decode(), "rig")
            self.dirs.append(log_dir)
        self.config = BrokerConfig.from_properties(
            {
                "process.roles": "broker",
                "node.id": str(broker_id),
                "listeners": f"{LISTENER}://127.0.0.1:0",
                "controller.quorum.voters": f"3000@127.0.0.1:{controller.server.port}",
                "log.dirs.allowed.roots": "/",
                "log.dirs": ",".join(log_dir.path for log_dir in self.dirs),
                "metadata.log.dir": "/meta",
                "replica.fetch.wait.max.ms": "50",
                "replica.fetch.backoff.ms": "20",
                "controller.request.timeout.ms": "500",
                **overrides,
            },
            source="rig",
            base_dir="/",
        )
        self.logs = LogManager(
            dirs=self.dirs,
            clock=RealClock(),
            default_config=self.config.topic_defaults(),
            random_bytes=random_bytes_of(broker_id),
            producer_limits=ProducerLimits(
                self.config.producer_id_expiration_ms, self.config.max_producer_ids_per_partition
            ),
        )
        self.disks = BrokerDisks(
            cluster_id=CLUSTER_ID,
            failures=self.failures,
            metadata_dir=self.dirs[0],
            logs=self.logs,
            make_log_dir=self.make_log_dir,
        )
        # The other brokers use the rig's own registration, which has the real port of the server.
        advertised = (Endpoint(LISTENER, "127.0.0.1", 9),)
        self.wiring = build_wiring(self.config, self.around, self.disks, advertised, self.tasks)
        self.parts = _by_name(self.wiring)
        #: Handlers that replace those of the broker, by the type of the request.
        self.handlers: dict[type[Message], Callable[[Any], Awaitable[Message]]] = {}
        self.listener = kafka_server(host="127.0.0.1", port=0, handler=self._handle)
        self._connections: list[KafkaConnection] = []

    def make_log_dir(self, path: str) -> LogDir:
        """Return a directory as the broker creates one at run time, on the disk of ``disks_at``."""
        return LogDir(
            path=path,
            vfs=self.disks_at[path],
            clock=RealClock(),
            failure_channel=self.failures,
        )

    def _handle(
        self, header: RequestHeader, body: Message, connection: ConnectionContext
    ) -> Awaitable[Message | None]:
        if (handler := self.handlers.get(type(body))) is not None:
            return handler(body)
        return self.wiring.apis.kafka.handle(header, body, connection)

    def registration(self, *, fenced: bool = False) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(
            broker_id=self.broker_id,
            broker_epoch=BrokerEpoch(-1),
            incarnation_id=Uuid(bytes([self.broker_id]) * 16),
            listeners=(Listener(name=LISTENER, host="127.0.0.1", port=self.listener.port),),
            rack=None,
            fenced=fenced,
            in_controlled_shutdown=False,
            log_dirs=tuple(log_dir.directory_id for log_dir in self.dirs if log_dir.is_online),
            previous_broker_epoch=CLOSED_IN,
        )

    def replay(self, *records: Record) -> None:
        """Append an entry to the broker's metadata without waiting for the disks."""
        state, delta = self.parts.cache.state, MetadataDelta()
        state.replay(records, offset=state.offset + 1, epoch=1, delta=delta)
        self.parts.publisher.publish(delta)

    async def follow(self, *records: Record) -> None:
        """Call :meth:`replay` and wait until the disk operations are done."""
        self.replay(*records)
        await self.parts.publisher.disk_work_done()

    async def connect(self) -> KafkaConnection:
        connection = await KafkaConnection.connect(
            "127.0.0.1", self.listener.port, client_id="test", timeout_ms=TIMEOUT_MS
        )
        self._connections.append(connection)
        return connection

    async def ask(self, body: Message, version: int | None = None) -> Any:
        """Send a request on a new connection and return the response."""
        connection = await self.connect()
        return await connection.request(body, timeout_ms=TIMEOUT_MS, version=version)

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.parts.hosted.close()
        self.parts.coordinator.close()
        self.parts.transaction_coordinator.close()
        await self.listener.close(timeout_ms=1_000)
        await self.parts.admin.close()
        self.parts.fetchers.close()
        await self.parts.publisher.close()
        await self.parts.moves.close()
        await self.parts.assignments.close()
        await self.tasks.close()
        self.parts.channel.close()
        await self.logs.close(CLOSED_IN, doubtful=self.parts.doubtful.unreported())


def _by_name(wiring: BrokerWiring) -> SimpleNamespace:
    """The components of all packages of the wiring, by name."""
    return SimpleNamespace(
        **{
            name: part
            for package in (
                wiring.cluster,
                wiring.replicas,
                wiring.directories,
                wiring.internal,
                wiring.groups,
                wiring.transactions,
                wiring.apis,
            )
            for name, part in vars(package).items()
            if not name.startswith("_")
        }
    )


def _absent(rigs: Sequence[BrokerRig]) -> list[RegisterBrokerRecord]:
    """Registered, fenced and absent brokers that others may follow."""
    present = {rig.broker_id for rig in rigs}
    return [
        RegisterBrokerRecord(
            broker_id=BrokerId(broker_id),
            broker_epoch=BrokerEpoch(-1),
            incarnation_id=Uuid(bytes([broker_id]) * 16),
            listeners=(Listener(name=LISTENER, host="127.0.0.1", port=9),),
            rack=None,
            fenced=True,
            in_controlled_shutdown=False,
            log_dirs=(dir_of(broker_id, 1), dir_of(broker_id, 2)),
        )
        for broker_id in (1, 2, 3)
        if broker_id not in present
    ]


def accept(request: RpcRequest) -> RpcResponse:
    """Answer as a controller that accepts every request."""
    match request:
        case AssignReplicasToDirsRequest():
            return AssignReplicasToDirsResponse()
        case AllocateProducerIdsRequest():
            return AllocateProducerIdsResponse(producer_id_start=5_000, producer_id_count=2)
        case AlterPartitionRequest():
            return AlterPartitionResponse(
                partitions=tuple(
                    AlteredPartition(
                        topic_id=changed.topic_id,
                        partition=changed.partition,
                        leader=request.broker_id,
                        leader_epoch=changed.leader_epoch,
                        partition_epoch=PartitionEpoch(changed.partition_epoch + 1),
                        isr=changed.isr,
                    )
                    for changed in request.partitions
                )
            )
        case AlterPartitionReassignmentsRequestRpc():
            return AlterPartitionReassignmentsResponseRpc(partitions=())
        case ListPartitionReassignmentsRequestRpc():
            return ListPartitionReassignmentsResponseRpc(partitions=())
        case UpdateFeaturesRequestRpc():
            return UpdateFeaturesResponseRpc(results=())
        case _:
            raise AssertionError(f"no response is scripted for {request.api}")


@contextlib.asynccontextmanager
async def brokers(
    count: int = 1,
    *vfss: MemVfs | FaultVfs,
    answer: Any = accept,
    opens: bool = True,
    knows_absent: bool = True,
    **overrides: str,
) -> AsyncIterator[list[BrokerRig]]:
    """Brokers 1 to ``count`` that know each other; ``vfss`` are the directories of broker 1.

    Absent brokers up to the third are registered and fenced, unless ``knows_absent`` is false.
    Without ``opens`` the logs are loaded, but the metadata has no effect on them yet. A bug that
    would end a daemon fails the test. ``min_insync_replicas`` of the cluster is 1 by default, so
    that one broker is enough.
    """
    controller = ScriptedController(answer)
    keys = {key.replace("_", "."): value for key, value in overrides.items()}
    of_all = ConfigRecord(
        resource_type=ResourceType.BROKER,
        resource_name="",
        name="min.insync.replicas",
        value=keys.pop("min.insync.replicas", "1"),
    )
    rigs: list[BrokerRig] = []
    with no_bugs():
        async with serving(controller):
            for broker_id in range(1, count + 1):
                disks = vfss if vfss and broker_id == 1 else (MemVfs(), MemVfs())
                rigs.append(BrokerRig(broker_id, disks, controller, keys))
            try:
                for rig in rigs:
                    await rig.listener.start()
                for rig in rigs:
                    await rig.logs.load()
                    rig.replay(
                        *(other.registration() for other in rigs),
                        *(_absent(rigs) if knows_absent else ()),
                        of_all,
                    )
                    await rig.parts.requested_moves.load(rig.wiring.cluster.is_agreed_to)
                    if opens:
                        rig.parts.publisher.open()
                yield rigs
            finally:
                for rig in rigs:
                    rig.parts.fetchers.close()
                await let_in()
                for rig in rigs:
                    await rig.close()


def produce(
    records: bytes | None, *, acks: int = -1, tp: TopicPartition = TP, timeout_ms: int = 1_000
) -> Message:
    kind = ProduceRequest
    request: Message = kind(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            kind.TopicProduceData(
                name=tp.topic,
                partition_data=[kind.PartitionProduceData(index=tp.partition, records=records)],
            )
        ],
    )
    return request


def fetch(
    offset: int = 0,
    *,
    tp: TopicPartition = TP,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **more: Any,
) -> Message:
    kind = FetchRequest
    request: Message = kind(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        topics=[
            kind.FetchTopic(
                topic=tp.topic,
                partitions=[
                    kind.FetchPartition(
                        partition=tp.partition,
                        fetch_offset=offset,
                        partition_max_bytes=1 << 20,
                        **more,
                    )
                ],
            )
        ],
    )
    return request


def only(response: Any) -> Any:
    """Return the part of the only partition in a Produce or Fetch response."""
    (topic_part,) = response.responses
    parts = getattr(topic_part, "partition_responses", None)
    (part,) = topic_part.partitions if parts is None else parts
    return part


def assigned(rig: BrokerRig) -> list[DirectoryId]:
    """The directories that brokers reported to the controller, in order."""
    return [
        directory.directory_id
        for request in rig.controller.seen
        if isinstance(request, AssignReplicasToDirsRequest)
        for directory in request.directories
    ]
