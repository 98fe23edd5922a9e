"""WIRE. A small client of a Kafka cluster, of kraftjbod or any other.

* Metadata is fetched on request and kept. Nothing runs in the background.
* The client has one connection per broker, opened on demand.
* Only :meth:`ClusterClient.retry` repeats failed operations: after errors that Kafka calls
  retriable and after lost connections, with backoff and fresh metadata, until a deadline.

For tools and for the tour. It does not support groups or transactions.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from kraftjbod.core.errors import (
    ConfigError,
    ConnectionLostError,
    ErrorCode,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.kafka_client import KafkaConnection, Login
from kraftjbod.protocol.kafka_codec import Request, api_name, request_api_key
from kraftjbod.protocol.messages import MetadataRequest, MetadataResponse

T = TypeVar("T")
#: Greater than any version of an API.
MAX_VERSION: Final = 2**15 - 1
R = TypeVar("R")

DEFAULT_PORT: Final = 9092
_CONNECT_TIMEOUT_MS: Final = 5000
#: After this time without a response of a leader, other brokers are asked whether it still leads.
_DOUBT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerNode:
    """The id and address of a broker in the metadata; ``rack`` is None if the broker has none."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """A partition in the metadata; ``leader`` is -1 without a leader.

    ``replicas`` are broker ids, the preferred leader first. ``offline_replicas`` are the brokers
    among them whose replica is offline.
    """

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic in the metadata, with its partitions by number.

    ``topic_id`` is all zeros if the cluster has no topic ids. ``error_code`` is 0 unless the broker
    cannot describe the topic.
    """

    name: str
    topic_id: bytes
    is_internal: bool
    error_code: int
    partitions: Mapping[int, PartitionMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The metadata in a broker's response: brokers by id, and topics by name.

    ``controller_id`` is the broker to which requests for the controller are sent; -1 if unknown.
    """

    controller_id: int = -1
    brokers: Mapping[int, BrokerNode] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)

    def topic(self, name: str) -> TopicMetadata:
        """Return the metadata of a topic.

        :raises OperatingError: the topic does not exist or has an error.
        """
        topic = self.topics.get(name)
        if topic is None:
            raise kafka_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
        if topic.error_code != ErrorCode.NONE:
            raise kafka_error(topic.error_code, f"topic {name}")
        return topic

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker id of a partition's leader.

        :raises OperatingError: the topic or partition does not exist; LEADER_NOT_AVAILABLE: it has
            no leader, or the leader's address is not in the metadata.
        """
        found = self.topic(topic).partitions.get(partition)
        if found is None:
            raise kafka_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        if found.leader not in self.brokers:
            raise kafka_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return found.leader


def kafka_error(code: int, what: str, message: str | None = None) -> OperatingError:
    """Return the error for an error code. The error for a code that this version does not know has
    the code UNKNOWN_SERVER_ERROR and shows the number, unless ``message`` is given.

    :param what: subject of the error, for the message.
    :param message: the broker's message, which then is the whole message, as in Kafka's tools.
    """
    known = ErrorCode(code)
    if not known.is_known:
        return OperatingError(message or f"{what}: Kafka error {code}")
    return OperatingError(message or f"{what}: {known.name}", code=known)


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Parse ``host:port,host:port``; the port is optional.

    :raises ConfigError: a part is not an address; the message names it.
    """
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":")
        if not colon:
            addresses.append((part, DEFAULT_PORT))
        elif host and port.isdigit():
            addresses.append((host.strip("[]"), int(port)))
        else:
            raise ConfigError(f"bootstrap server {part!r} is not host:port")
    if not addresses:
        raise ConfigError("no bootstrap server given")
    return addresses


class ClusterClient:
    """A client of a Kafka cluster, which sends requests over one connection per broker.

    Connections are opened by the first request. ``metadata`` has the newest metadata, which is
    empty until :meth:`refresh_metadata`. Call :meth:`close`, or use the client in ``async with``.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        client_id: str = "kraftjbod-tools",
        request_timeout_ms: int = 30_000,
        retry_timeout_ms: int = 60_000,
        retry_backoff_ms: int = 20,
        retry_backoff_max_ms: int = 1000,
        random_unit: Callable[[], float] = random.random,
        dialer: Dialer = PLAIN,
        login: Login | None = None,
    ) -> None:
        """:param dialer: opens the connections.
        :param login: logs in on each new connection.
        """
        self.dialer, self._login = dialer, login
        self.request_timeout_ms = request_timeout_ms
        self.metadata = ClusterMetadata()
        self._bootstrap = parse_bootstrap(bootstrap_servers)
        self._client_id = client_id
        self._retry_timeout_ms = retry_timeout_ms
        self._backoff = ExponentialBackoff(
            initial_ms=retry_backoff_ms,
            max_ms=retry_backoff_max_ms,
            random_unit=random_unit,
        )
        self._connections: dict[tuple[str, int], KafkaConnection] = {}
        self._connecting: dict[tuple[str, int], asyncio.Task[KafkaConnection]] = {}
        #: Addresses to which the last connection attempt failed.
        self._lost: set[tuple[str, int]] = set()

    def __repr__(self) -> str:
        return f"<ClusterClient {self._bootstrap} connections={len(self._connections)}>"

    @property
    def open_connections(self) -> int:
        """Number of connections that are open now."""
        return sum(connection.is_open for connection in self._connections.values())

    async def close(self) -> None:
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def __aenter__(self) -> ClusterClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def refresh_metadata(
        self,
        topics: Sequence[str] | None = None,
        *,
        create_missing: bool = False,
        but: int | None = None,
    ) -> ClusterMetadata:
        """Fetch the metadata of ``topics`` from any broker; return it, and keep it as
        :attr:`metadata`.

        The kept metadata then has no other topics. A partition that was kept with a newer leader
        epoch stays as it was.

        :param topics: None for all topics.
        :param create_missing: whether the broker may create missing topics.
        :param but: a broker that is not asked.
        :raises ConnectionLostError: no broker responds.
        """
        named = MetadataRequest.MetadataRequestTopic
        wanted = None if topics is None else [named(name=topic) for topic in topics]
        response = await self.request_from_any_broker(
            MetadataRequest(topics=wanted, allow_auto_topic_creation=create_missing), but=but
        )
        self.metadata = _newest(_read_metadata(response), self.metadata)
        return self.metadata

    async def request(
        self,
        node_id: int,
        body: Request[R],
        *,
        timeout_ms: int | None = None,
        min_version: int = 0,
        max_version: int = MAX_VERSION,
    ) -> R:
        """Send a request to the broker ``node_id``, and return the response.

        :param timeout_ms: default: the client's request timeout.
        :param min_version: the lowest version of the API that has all fields in use.
        :param max_version: the highest version with this form of the request.
        :raises OperatingError: as :meth:`KafkaConnection.request`; UNSUPPORTED_VERSION.
        :raises ConnectionLostError: also if the broker is not in the metadata.
        """
        node = self.metadata.brokers.get(node_id)
        if node is None:
            raise ConnectionLostError(f"broker {node_id} is not in the cluster's metadata")
        connection = await self._connection(node.host, node.port)
        return await self._ask(connection, body, timeout_ms, min_version, max_version)

    def is_connected(self, node_id: int) -> bool:
        """Return whether a connection to the broker is open; False for a broker that is not in the
        metadata."""
        node = self.metadata.brokers.get(node_id)
        connection = None if node is None else self._connections.get((node.host, node.port))
        return connection is not None and connection.is_open

    async def request_leader(
        self, topic: str, partition: int, body: Request[R], *, timeout_ms: int
    ) -> R:
        """Send a request to a partition's leader, and return the response.

        A paused broker, or one whose host is gone, neither responds nor closes the connection. So
        while the leader does not respond, other brokers are asked about once a second whether it
        still leads; this replaces the kept metadata.

        :raises ConnectionLostError: as :meth:`request`, or another broker names a new leader.
        :raises OperatingError: as :meth:`request`, or as :meth:`ClusterMetadata.leader`.
        """
        leader = self.metadata.leader(topic, partition)
        node = self.metadata.brokers[leader]
        asking = asyncio.create_task(self.request(leader, body, timeout_ms=timeout_ms))
        try:
            while not (await asyncio.wait({asking}, timeout=_DOUBT_S))[0]:
                if await self._is_led_by_another(topic, partition, leader):
                    connection = self._connections.get((node.host, node.port))
                    if connection is not None:
                        connection.close()
                    raise ConnectionLostError(f"broker {leader} is silent, and leads no more")
            return asking.result()
        finally:
            asking.cancel()

    async def _is_led_by_another(self, topic: str, partition: int, leader: int) -> bool:
        """Return whether another broker names a different leader now."""
        try:
            async with asyncio.timeout(_DOUBT_S):
                metadata = await self.refresh_metadata([topic], but=leader)
            return metadata.leader(topic, partition) != leader
        except (OperatingError, TimeoutError):
            return False

    async def request_from_any_broker(
        self, body: Request[R], *, min_version: int = 0, but: int | None = None
    ) -> R:
        """Send a request to one broker after the other until one responds; return the response.

        :param but: a broker that is left out.
        :raises ConnectionLostError: no broker responds; the message has the reason of each.
        :raises OperatingError: UNSUPPORTED_VERSION: that broker does not support ``min_version``.
        """
        brokers = self.metadata.brokers
        known = [(node.host, node.port) for node in brokers.values()]
        left_out = [(node.host, node.port) for i, node in brokers.items() if i == but]
        addresses = [
            one for one in dict.fromkeys([*known, *self._bootstrap]) if one not in left_out
        ]
        addresses.sort(key=self._doubt)
        reasons = []
        for host, port in addresses:
            try:
                connection = await self._connection(host, port)
                return await self._ask(connection, body, None, min_version)
            except (ConnectionLostError, RequestTimedOutError) as e:
                reasons.append(e.message)
        raise ConnectionLostError("; ".join(reasons))

    async def request_controller(self, body: Request[R], *, min_version: int = 0) -> R:
        """Send a request to the broker that the metadata names as controller; without one to any
        broker.

        :raises OperatingError: as :meth:`request`.
        """
        if self.metadata.controller_id in self.metadata.brokers:
            controller = self.metadata.controller_id
            return await self.request(controller, body, min_version=min_version)
        return await self.request_from_any_broker(body, min_version=min_version)

    async def _ask(
        self,
        connection: KafkaConnection,
        body: Request[R],
        timeout_ms: int | None,
        min_version: int,
        max_version: int = MAX_VERSION,
    ) -> R:
        api_key = request_api_key(body)
        version = min(connection.version_of(api_key), max_version)
        if version < min_version:
            raise OperatingError(
                f"{api_name(api_key)} version {min_version} is needed for this, and the broker "
                f"knows version {version} only",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        return await connection.request(
            body, timeout_ms=timeout_ms or self.request_timeout_ms, version=version
        )

    async def retry(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        topics: Sequence[str] | None = None,
        timeout_ms: int | None = None,
    ) -> T:
        """Repeat ``attempt`` until it succeeds, and return its result.

        After a retriable failure the metadata of ``topics`` is fetched before the next attempt.

        :param topics: None for all topics.
        :param timeout_ms: time after which a failure is not followed by a new attempt; a running
            attempt is not interrupted. Default: the client's retry timeout.
        :raises OperatingError: the first error that is not retriable, or the last one after the
            limit.
        """
        deadline = asyncio.get_running_loop().time() + (timeout_ms or self._retry_timeout_ms) / 1000
        failures = 0
        stale = False
        while True:
            try:
                if stale:
                    await self.refresh_metadata(topics)
                    stale = False
                return await attempt()
            except OperatingError as e:
                if not may_pass(e) or asyncio.get_running_loop().time() >= deadline:
                    raise
                failures += 1
                stale = True
            await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)

    def _doubt(self, address: tuple[str, int]) -> int:
        """Return a sort key for a broker's address: connected brokers first, brokers with a lost
        connection last.

        A lost broker may be paused, so that a request to it would wait.
        """
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return 0
        return 1 if connection is None and address not in self._lost else 2

    async def _connection(self, host: str, port: int) -> KafkaConnection:
        address = (host, port)
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        self._connections.pop(address, None)
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.create_task(self._connect(host, port))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        return await asyncio.shield(task)

    async def _connect(self, host: str, port: int) -> KafkaConnection:
        self._lost.add((host, port))
        connection = await KafkaConnection.connect(
            host,
            port,
            client_id=self._client_id,
            timeout_ms=min(_CONNECT_TIMEOUT_MS, self.request_timeout_ms),
            dialer=self.dialer,
            login=self._login,
        )
        self._lost.discard((host, port))
        self._connections[host, port] = connection
        return connection


def may_pass(error: OperatingError) -> bool:
    """Return whether a repetition with fresh metadata may succeed: ``error`` is retriable, or a
    connection was lost."""
    return error.retriable or isinstance(error, ConnectionLostError)


def _newest(answer: ClusterMetadata, known: ClusterMetadata) -> ClusterMetadata:
    """Return ``answer``, but keep leaders of ``known`` whose leader epoch is newer (KIP-320)."""
    topics = {}
    for name, topic in answer.topics.items():
        before = known.topics.get(name)
        if before is not None and before.topic_id == topic.topic_id:
            partitions = {
                index: max(partition, before.partitions.get(index, partition), key=_leader_epoch)
                for index, partition in topic.partitions.items()
            }
            topic = replace(topic, partitions=partitions)
        topics[name] = topic
    return replace(answer, topics=topics)


def _leader_epoch(partition: PartitionMetadata) -> int:
    return partition.leader_epoch


def _read_metadata(response: MetadataResponse) -> ClusterMetadata:
    return ClusterMetadata(
        controller_id=response.controller_id,
        brokers={
            broker.node_id: BrokerNode(
                node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
            )
            for broker in response.brokers
        },
        # Topics without a name appear only in answers to requests by id, which are not used here.
        topics={t.name: _read_topic(t.name, t) for t in response.topics if t.name is not None},
    )


def _read_topic(name: str, topic: MetadataResponse.MetadataResponseTopic) -> TopicMetadata:
    return TopicMetadata(
        name=name,
        topic_id=bytes(topic.topic_id),
        is_internal=topic.is_internal,
        error_code=topic.error_code,
        partitions={
            partition.partition_index: PartitionMetadata(
                partition=partition.partition_index,
                leader=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replicas=tuple(partition.replica_nodes),
                isr=tuple(partition.isr_nodes),
                offline_replicas=tuple(partition.offline_replicas),
            )
            for partition in sorted(topic.partitions, key=lambda p: p.partition_index)
        },
    )
