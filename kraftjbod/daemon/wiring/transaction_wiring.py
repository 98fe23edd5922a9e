"""WIRE. Build the parts of ``broker/transactions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.producer_ids import ProducerIdManager
from kraftjbod.broker.transactions.marker_queue import MarkerQueue, Outcome
from kraftjbod.broker.transactions.marker_sender import MarkerSender
from kraftjbod.broker.transactions.transaction_admin_apis import TransactionAdminApis
from kraftjbod.broker.transactions.transaction_apis import TransactionApis
from kraftjbod.broker.transactions.transaction_coordinator import (
    TransactionCoordinator,
    TransactionSettings,
)
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicPartition
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring, backoff
from kraftjbod.daemon.wiring.internal_wiring import InternalWiring
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring

_BACKOFF_MAX_MS: Final = 1_000
#: Time that a coordinator has after the longest timeout to end a transaction; Kafka's value.
_LATE_MS: Final = 5 * 60_000
_LATE_COUNT_INTERVAL_MS: Final = 10_000


class TransactionWiring:
    """Builds the coordinator of transactions, and its request handlers."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        cluster: ClusterWiring,
        replicas: ReplicaWiring,
        internal: InternalWiring,
        tasks: BackgroundTasks,
    ) -> None:
        self._config = config
        self._environment = environment
        self._cluster = cluster
        self._tasks = tasks
        producer_ids = ProducerIdManager(
            broker_id=config.node_id,
            channel=cluster.channel,
            broker_epoch=lambda: cluster.lifecycle.broker_epoch,
            timeout_ms=config.controller_request_timeout_ms,
        )
        self.transaction_coordinator = TransactionCoordinator(
            cache=cluster.cache,
            producer=internal.producer("transactions"),
            reader=internal.reader(config.transaction_state_log_load_buffer_size),
            make_sender=self._make_sender,
            next_producer_id=producer_ids.next_id,
            tasks=tasks,
            clock=environment.clock,
            backoff=backoff(environment, _BACKOFF_MAX_MS),
            metrics=environment.metrics,
            settings=TransactionSettings(
                id_expiration_ms=config.transactional_id_expiration_ms,
                abort_interval_ms=(
                    config.transaction_abort_timed_out_transaction_cleanup_interval_ms
                ),
                expiry_interval_ms=(
                    config.transaction_remove_expired_transaction_cleanup_interval_ms
                ),
                max_ids_per_partition=config.transaction_max_ids_per_partition,
                write_timeout_ms=config.transaction_state_log_write_timeout_ms,
            ),
            may_be_deposed=lambda: cluster.lifecycle.may_be_deposed,
        )
        replicas.leaderships.subscribe(self.transaction_coordinator)
        self.transactions = TransactionApis(
            coordinator=self.transaction_coordinator,
            cache=cluster.cache,
            internal_topics=internal.internal_topics,
            make_offsets_topic=lambda: internal.topic_creator.ensure(internal.consumer_offsets),
            next_producer_id=producer_ids.next_id,
            max_timeout_ms=config.transaction_max_timeout_ms,
        )
        self.transaction_admin = TransactionAdminApis(
            coordinator=self.transaction_coordinator, clock=environment.clock
        )

        self._hosted = replicas.hosted
        self._late_transactions, self._count_late_at_ms = 0, 0
        environment.metrics.gauge(
            "PartitionsWithLateTransactionsCount", self._count_late_transactions
        )

    def _count_late_transactions(self) -> int:
        """Return the number of hosted partitions with a late transaction, counted at most every 10
        s.

        A transaction is late 5 minutes after ``transaction.max.timeout.ms``.
        """
        clock = self._environment.clock
        if clock.now_ms() >= self._count_late_at_ms:
            self._count_late_at_ms = clock.now_ms() + _LATE_COUNT_INTERVAL_MS
            before_ms = clock.wall_ms() - self._config.transaction_max_timeout_ms - _LATE_MS
            self._late_transactions = self._hosted.count_late_transactions(before_ms=before_ms)
        return self._late_transactions

    def _make_sender(self, on_outcome: Callable[[Outcome], None]) -> MarkerSender:
        return MarkerSender(
            queue=MarkerQueue(
                leader_of=self._leader_of, backoff=backoff(self._environment, _BACKOFF_MAX_MS)
            ),
            connector=self._cluster.connector,
            tasks=self._tasks,
            clock=self._environment.clock,
            request_timeout_ms=self._config.request_timeout_ms,
            on_outcome=on_outcome,
        )

    def _leader_of(self, topic_partition: TopicPartition) -> BrokerId | None:
        """Return the leader of a partition; ``NO_LEADER`` if it has no address.

        None means that the partition does not exist.
        """
        partition = self._cluster.cache.state.partition_named(topic_partition)
        if partition is None:
            return None
        listener = self._config.inter_broker_listener
        is_reached = self._cluster.cache.endpoint(partition.leader, listener) is not None
        return partition.leader if is_reached else NO_LEADER
