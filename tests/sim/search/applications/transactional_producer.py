"""A minimal transactional producer that sends raw requests.

It supports both protocols: AddPartitionsToTxn before the first record of a partition, and KIP-890
without it, where the epoch grows with every transaction. One request at a time is in flight, and is
repeated until it is answered, refused or timed out. After a refusal or timeout the producer must
not be used again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from kraftjbod.cli.clients.cluster_client import MAX_VERSION, ClusterClient, kafka_error
from kraftjbod.cli.clients.group_admin import by_topic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import Request
from kraftjbod.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kraftjbod.protocol.records import Record, build_batch

T = TypeVar("T")
#: An answer with a single error code.
A = TypeVar("A", InitProducerIdResponse, AddOffsetsToTxnResponse, EndTxnResponse)
R = TypeVar("R")
GROUP: Final = 0
TRANSACTION: Final = 1
_KEYS_SINCE: Final = 4
#: The last versions without KIP-890.
_OLD_PRODUCE: Final = 11
_OLD_END: Final = 4
_OLD_OFFSETS: Final = 4
_CLIENTS_ADD: Final = 3
_GIVE_UP_MS: Final = 20_000


class Coordinators:
    """Finds the coordinator of a group or transactional id, again after every failure."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._known: dict[tuple[int, str], int] = {}

    async def ask(
        self, kind: int, key: str, body: Request[R], *, max_version: int = MAX_VERSION
    ) -> R:
        """:raises OperatingError: as :meth:`ClusterClient.request`."""
        try:
            if (kind, key) not in self._known:
                self._known[kind, key] = await self.find(kind, key)
            node_id = self._known[kind, key]
            return await self._client.request(node_id, body, max_version=max_version)
        except OperatingError:
            self.forget(kind, key)
            raise

    def forget(self, kind: int, key: str) -> None:
        self._known.pop((kind, key), None)

    async def find(self, kind: int, key: str) -> int:
        """Ask any broker for the coordinator."""
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        (one,) = (
            await self._client.request_from_any_broker(request, min_version=_KEYS_SINCE)
        ).coordinators
        if one.error_code != ErrorCode.NONE:
            raise kafka_error(one.error_code, f"coordinator of {key}")
        if one.node_id not in self._client.metadata.brokers:
            await self._client.refresh_metadata()
        return one.node_id


class TransactionalProducer:
    """Call :meth:`init` once, then send records and offsets and call :meth:`end`, repeatedly."""

    def __init__(
        self,
        client: ClusterClient,
        transactional_id: str,
        *,
        timeout_ms: int,
        grows_epoch: bool,
    ) -> None:
        """:param grows_epoch: use KIP-890, where the epoch grows with every transaction."""
        self._client = client
        self._coordinators = Coordinators(client)
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._grows_epoch = grows_epoch
        self.producer_id = self.epoch = -1
        self._sequences: defaultdict[TopicPartition, int] = defaultdict(int)
        self._added: set[TopicPartition | str] = set()

    async def init(self) -> None:
        """End the open transaction of a predecessor, and fence it."""
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=self._timeout_ms
        )
        response = await self._ask(request)
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch

    async def send(self, records: Mapping[TopicPartition, Sequence[bytes]], at_ms: int) -> None:
        """Write values to some partitions: one batch each, one request for each leader."""
        if not self._grows_epoch:
            await self._add([tp for tp in records if tp not in self._added])
        batches = {
            tp: build_batch(
                [Record(value=value, timestamp_ms=at_ms) for value in values],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self._sequences[tp],
                is_transactional=True,
            )
            for tp, values in records.items()
        }
        topics = sorted({tp.topic for tp in records})
        await self._retry(lambda: self._produce(batches), topics=topics)
        for tp, values in records.items():
            self._sequences[tp] += len(values)

    async def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not self._grows_epoch and group not in self._added:
            await self._ask(
                AddOffsetsToTxnRequest(
                    transactional_id=self._id,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    group_id=group,
                )
            )
            self._added.add(group)
        await self._retry(lambda: self._commit(group, offsets))

    async def end(self, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )
        newest = MAX_VERSION if self._grows_epoch else _OLD_END
        response = await self._ask(request, max_version=newest)
        self._added.clear()
        if self._grows_epoch and (response.producer_id, response.producer_epoch) != (
            self.producer_id,
            self.epoch,
        ):
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self._sequences.clear()

    # --- one try ---------------------------------------------------------------------------------

    async def _ask(self, body: Request[A], *, max_version: int = MAX_VERSION) -> A:
        async def attempt() -> A:
            response = await self._coordinators.ask(
                TRANSACTION, self._id, body, max_version=max_version
            )
            self._require_ok(TRANSACTION, self._id, response.error_code)
            return response

        return await self._retry(attempt)

    def _require_ok(self, kind: int, key: str, code: int) -> None:
        if code != ErrorCode.NONE:
            if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.forget(kind, key)
            raise kafka_error(code, f"{self._id} epoch {self.epoch}")

    async def _add(self, partitions: Sequence[TopicPartition]) -> None:
        if not partitions:
            return
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                topic(name=name, partitions=[tp.partition for tp in some])
                for name, some in by_topic(partitions).items()
            ],
        )

        async def attempt() -> None:
            response = await self._coordinators.ask(
                TRANSACTION, self._id, request, max_version=_CLIENTS_ADD
            )
            for one in response.results_by_topic_v3_and_below:
                for result in one.results_by_partition:
                    self._require_ok(TRANSACTION, self._id, result.partition_error_code)

        await self._retry(attempt)
        self._added.update(partitions)

    async def _produce(self, batches: dict[TopicPartition, bytes]) -> None:
        """Send ``batches``, and remove those from the mapping that are written.

        :raises OperatingError: the first error; the remaining batches were sent as well.
        """
        failed: OperatingError | None = None
        metadata = self._client.metadata
        by_leader = defaultdict[int, list[TopicPartition]](list)
        for tp in batches:
            by_leader[metadata.leader(tp.topic, tp.partition)].append(tp)
        for leader, partitions in by_leader.items():
            try:
                codes = await self._produce_to(leader, {tp: batches[tp] for tp in partitions})
            except OperatingError as e:
                failed = failed or e
                continue
            for tp, code in codes.items():
                if code == ErrorCode.NONE:
                    del batches[tp]
                else:
                    what = f"{tp} from {self._id} epoch {self.epoch}"
                    failed = failed or kafka_error(code, what)
        if failed is not None:
            raise failed

    async def _produce_to(
        self, leader: int, batches: Mapping[TopicPartition, bytes]
    ) -> dict[TopicPartition, int]:
        """Return the error codes by partition."""
        kind = ProduceRequest
        request = kind(
            transactional_id=self._id,
            acks=-1,
            timeout_ms=self._client.request_timeout_ms,
            topic_data=[
                kind.TopicProduceData(
                    name=name,
                    topic_id=self._client.metadata.topic(name).topic_id,
                    partition_data=[
                        kind.PartitionProduceData(index=tp.partition, records=batches[tp])
                        for tp in some
                    ],
                )
                for name, some in by_topic(batches).items()
            ],
        )
        newest = MAX_VERSION if self._grows_epoch else _OLD_PRODUCE
        response = await self._client.request(leader, request, max_version=newest)
        assert response is not None
        answered = zip(by_topic(batches).items(), response.responses, strict=True)
        return {
            TopicPartition(name, part.index): part.error_code
            for (name, _), topic in answered
            for part in topic.partition_responses
        }

    async def _commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        kind = TxnOffsetCommitRequest
        request = kind(
            transactional_id=self._id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=-1,
            topics=[
                kind.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        kind.TxnOffsetCommitRequestPartition(
                            partition_index=tp.partition, committed_offset=offsets[tp]
                        )
                        for tp in partitions
                    ],
                )
                for topic, partitions in by_topic(offsets).items()
            ],
        )
        newest = MAX_VERSION if self._grows_epoch else _OLD_OFFSETS
        response = await self._coordinators.ask(GROUP, group, request, max_version=newest)
        for topic in response.topics:
            for one in topic.partitions:
                self._require_ok(GROUP, group, one.error_code)

    async def _retry(self, attempt: Callable[[], Awaitable[T]], *, topics: Sequence[str] = ()) -> T:
        return await self._client.retry(attempt, topics=topics, timeout_ms=_GIVE_UP_MS)
