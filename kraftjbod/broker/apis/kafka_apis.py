"""LOOP. ``KafkaApis``: one handler per API, found by the class of the request.

Handlers return every expected error in the response. Any other exception is a bug: the session
logs it and closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from kraftjbod.broker.apis.admin.acl_apis import AclApis
from kraftjbod.broker.apis.admin.config_resource_apis import ConfigResourceApis
from kraftjbod.broker.apis.admin.election_apis import ElectionApis
from kraftjbod.broker.apis.admin.quota_apis import QuotaApis
from kraftjbod.broker.apis.admin.scram_apis import ScramApis
from kraftjbod.broker.apis.client_throttle import ClientThrottle
from kraftjbod.broker.apis.config_apis import ConfigApis
from kraftjbod.broker.apis.feature_apis import FeatureApis
from kraftjbod.broker.apis.log_dir_admin_apis import LogDirAdminApis
from kraftjbod.broker.apis.log_dir_apis import LogDirApis
from kraftjbod.broker.apis.metadata_apis import MetadataApis
from kraftjbod.broker.apis.offset_apis import OffsetApis
from kraftjbod.broker.apis.produce_fetch_apis import ProduceFetchApis
from kraftjbod.broker.apis.quorum_apis import QuorumApis
from kraftjbod.broker.apis.reassignment_apis import ReassignmentApis
from kraftjbod.broker.apis.record_deletion_apis import RecordDeletionApis
from kraftjbod.broker.apis.topic_apis import TopicApis
from kraftjbod.broker.apis.topic_partitions_apis import TopicPartitionsApis
from kraftjbod.broker.groups.committed_offset_apis import CommittedOffsetApis
from kraftjbod.broker.groups.consumer_group_apis import ConsumerGroupApis
from kraftjbod.broker.groups.group_admin_apis import GroupAdminApis
from kraftjbod.broker.groups.group_apis import GroupApis
from kraftjbod.broker.groups.transactional_offset_apis import TransactionalOffsetApis
from kraftjbod.broker.internal.coordinator_apis import CoordinatorApis
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.request_guard import RequestGuard, unguarded
from kraftjbod.broker.security.sasl_apis import SaslApis
from kraftjbod.broker.transactions.transaction_admin_apis import TransactionAdminApis
from kraftjbod.broker.transactions.transaction_apis import TransactionApis
from kraftjbod.broker.transactions.transaction_log_apis import TransactionLogApis
from kraftjbod.core.loop.client_rates import ClientRates
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.protocol.kafka_codec import Message, RequestHeader
from kraftjbod.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddRaftVoterRequest,
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    AlterLogDirsRequest,
    AlterPartitionReassignmentsRequest,
    AlterReplicaLogDirsRequest,
    AlterUserScramCredentialsRequest,
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteAclsRequest,
    DeleteGroupsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeGroupsRequest,
    DescribeLogDirsRequest,
    DescribeProducersRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    DescribeTransactionsRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListConfigResourcesRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    RemoveRaftVoterRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    UnregisterBrokerRequest,
    UnregisterControllerRequest,
    UpdateFeaturesRequest,
    WriteTxnMarkersRequest,
)

Q = TypeVar("Q", bound=Message)
_ApiHandler = Callable[[Any, RequestContext], Awaitable[Message | None]]


class KafkaApis:
    def __init__(
        self,
        *,
        produce_fetch: ProduceFetchApis,
        offsets: OffsetApis,
        record_deletion: RecordDeletionApis,
        metadata: MetadataApis,
        topic_partitions: TopicPartitionsApis,
        topics: TopicApis,
        configs: ConfigApis,
        config_resources: ConfigResourceApis,
        elections: ElectionApis,
        log_dirs: LogDirApis,
        log_dir_admin: LogDirAdminApis,
        reassignments: ReassignmentApis,
        features: FeatureApis,
        quorum: QuorumApis,
        sasl: SaslApis,
        acls: AclApis,
        scram: ScramApis,
        quotas: QuotaApis,
        groups: GroupApis,
        committed_offsets: CommittedOffsetApis,
        group_admin: GroupAdminApis,
        consumer_groups: ConsumerGroupApis,
        transactional_offsets: TransactionalOffsetApis,
        coordinators: CoordinatorApis,
        transactions: TransactionApis,
        transaction_admin: TransactionAdminApis,
        transaction_log: TransactionLogApis,
        guard: RequestGuard | None = None,
        client_rates: ClientRates,
    ) -> None:
        """Create the table of handlers.

        :param guard: authorizes each request; None if each client may do everything.
        """
        self._throttle = ClientThrottle(client_rates)
        self._guard = guard
        self._produce_fetch = produce_fetch
        self._handlers: dict[type[Message], _ApiHandler] = {}
        self._serve(ProduceRequest, produce_fetch.produce)
        self._serve(FetchRequest, produce_fetch.fetch)
        self._serve(ListOffsetsRequest, offsets.list_offsets)
        self._serve(OffsetForLeaderEpochRequest, offsets.offset_for_leader_epoch)
        self._serve(DeleteRecordsRequest, record_deletion.delete_records)
        self._serve(MetadataRequest, metadata.metadata)
        self._serve(DescribeClusterRequest, metadata.describe_cluster)
        self._serve(DescribeTopicPartitionsRequest, topic_partitions.describe_topic_partitions)
        self._serve(CreateTopicsRequest, topics.create_topics)
        self._serve(DeleteTopicsRequest, topics.delete_topics)
        self._serve(CreatePartitionsRequest, topics.create_partitions)
        self._serve(DescribeConfigsRequest, configs.describe_configs)
        self._serve(AlterConfigsRequest, configs.alter_configs)
        self._serve(IncrementalAlterConfigsRequest, configs.incremental_alter_configs)
        self._serve(ListConfigResourcesRequest, config_resources.list_config_resources)
        self._serve(DescribeLogDirsRequest, log_dirs.describe_log_dirs)
        self._serve(AlterReplicaLogDirsRequest, log_dirs.alter_replica_log_dirs)
        self._serve(AlterLogDirsRequest, log_dir_admin.alter_log_dirs)
        self._serve(UpdateFeaturesRequest, features.update_features)
        self._serve(FindCoordinatorRequest, coordinators.find_coordinator)
        self._serve_groups(groups, committed_offsets, group_admin)
        self._serve(ConsumerGroupHeartbeatRequest, consumer_groups.heartbeat)
        self._serve(ConsumerGroupDescribeRequest, consumer_groups.describe)
        self._serve(TxnOffsetCommitRequest, transactional_offsets.txn_offset_commit)
        self._serve_transactions(transactions, transaction_admin, transaction_log)
        self._serve_security(acls, sasl, scram, quotas)
        self._serve_elections(elections, quorum, reassignments)
        assert not unguarded(self._handlers), unguarded(self._handlers)

    def _serve_security(
        self, acls: AclApis, sasl: SaslApis, scram: ScramApis, quotas: QuotaApis
    ) -> None:
        self._serve(DescribeClientQuotasRequest, quotas.describe_client_quotas)
        self._serve(AlterClientQuotasRequest, quotas.alter_client_quotas)
        self._serve(DescribeAclsRequest, acls.describe_acls)
        self._serve(CreateAclsRequest, acls.create_acls)
        self._serve(DeleteAclsRequest, acls.delete_acls)
        self._serve(AlterUserScramCredentialsRequest, scram.alter_user_scram_credentials)
        self._serve(DescribeUserScramCredentialsRequest, scram.describe_user_scram_credentials)
        self._serve(SaslHandshakeRequest, sasl.sasl_handshake)
        self._serve(SaslAuthenticateRequest, sasl.sasl_authenticate)

    def _serve_elections(
        self, elections: ElectionApis, quorum: QuorumApis, reassignments: ReassignmentApis
    ) -> None:
        self._serve(AlterPartitionReassignmentsRequest, reassignments.alter_partition_reassignments)
        self._serve(ListPartitionReassignmentsRequest, reassignments.list_partition_reassignments)
        self._serve(ElectLeadersRequest, elections.elect_leaders)
        self._serve(UnregisterBrokerRequest, elections.unregister_broker)
        self._serve(DescribeQuorumRequest, quorum.describe_quorum)
        self._serve(AddRaftVoterRequest, quorum.add_raft_voter)
        self._serve(RemoveRaftVoterRequest, quorum.remove_raft_voter)
        self._serve(UnregisterControllerRequest, quorum.unregister_controller)

    def _serve_groups(
        self, groups: GroupApis, offsets: CommittedOffsetApis, admin: GroupAdminApis
    ) -> None:
        self._serve(JoinGroupRequest, groups.join_group)
        self._serve(SyncGroupRequest, groups.sync_group)
        self._serve(HeartbeatRequest, groups.heartbeat)
        self._serve(LeaveGroupRequest, groups.leave_group)
        self._serve(OffsetCommitRequest, offsets.offset_commit)
        self._serve(OffsetFetchRequest, offsets.offset_fetch)
        self._serve(OffsetDeleteRequest, offsets.offset_delete)
        self._serve(DescribeGroupsRequest, admin.describe_groups)
        self._serve(ListGroupsRequest, admin.list_groups)
        self._serve(DeleteGroupsRequest, admin.delete_groups)

    def _serve_transactions(
        self,
        transactions: TransactionApis,
        admin: TransactionAdminApis,
        transaction_log: TransactionLogApis,
    ) -> None:
        self._serve(WriteTxnMarkersRequest, transaction_log.write_txn_markers)
        self._serve(DescribeProducersRequest, transaction_log.describe_producers)
        self._serve(InitProducerIdRequest, transactions.init_producer_id)
        self._serve(AddPartitionsToTxnRequest, transactions.add_partitions_to_txn)
        self._serve(AddOffsetsToTxnRequest, transactions.add_offsets_to_txn)
        self._serve(EndTxnRequest, transactions.end_txn)
        self._serve(DescribeTransactionsRequest, admin.describe_transactions)
        self._serve(ListTransactionsRequest, admin.list_transactions)

    def _serve(
        self, kind: type[Q], handler: Callable[[Q, RequestContext], Awaitable[Message | None]]
    ) -> None:
        """Register the handler of requests of class ``kind``; the types ensure that both match."""
        self._handlers[kind] = handler

    def is_of_broker(self, header: RequestHeader, body: Message) -> bool:
        """Return whether the request is a Fetch of a follower that is a registered broker."""
        return isinstance(body, FetchRequest) and self._produce_fetch.is_of_follower(
            body, header.api_version
        )

    def handle(
        self, header: RequestHeader, body: Message, connection: ConnectionContext
    ) -> Awaitable[Message | None]:
        """Return the awaitable response to one request. It is None for Produce with ``acks=0``.

        :raises UnansweredError: when awaited, as :meth:`ProduceFetchApis.produce`.
        """
        context = RequestContext(
            connection=connection,
            api_version=header.api_version,
            client_id=header.client_id,
        )
        if isinstance(body, (ProduceRequest, FetchRequest)) and self._throttle.limits(body):
            return self._throttle.answer(body, context, partial(self._answer, body))
        return self._answer(body, context)

    def _answer(self, body: Message, context: RequestContext) -> Awaitable[Message | None]:
        handler = self._handlers[type(body)]
        if self._guard is None:
            return handler(body, context)
        return self._guard.handle(body, context, handler)
