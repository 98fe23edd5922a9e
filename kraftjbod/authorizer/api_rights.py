"""PURE. The rights that each API requires: one row per API of the clients' listener and of the RPC.

docs/security.md has this table. ``broker/security/request_guard.py`` and the handlers that it names
enforce the rows of Kafka's APIs. The tests send each API with and without the rights of its row.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftjbod.core.acl import AclOperation, AclResourceType
from kraftjbod.core.errors import ErrorCode

_Op, _Kind = AclOperation, AclResourceType
_T29: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_G30: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_C31: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_X53: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_CODES: Final = {
    _Kind.TOPIC: _T29,
    _Kind.GROUP: _G30,
    _Kind.CLUSTER: _C31,
    _Kind.TRANSACTIONAL_ID: _X53,
}


class Need(NamedTuple):
    """A right that an API requires. ``code`` is the error without it; None if items are left out.

    ``when`` says for which requests or items it is needed, or which other right suffices.
    """

    operation: AclOperation
    resource_type: AclResourceType
    when: str = ""
    code: ErrorCode | None = None


def _need(
    operation: AclOperation, resource_type: AclResourceType, when: str = "", *, hides: bool = False
) -> Need:
    return Need(operation, resource_type, when, None if hides else _CODES[resource_type])


_ALTERS: Final = (_need(_Op.ALTER, _Kind.CLUSTER),)
_DESCRIBES: Final = (_need(_Op.DESCRIBE, _Kind.CLUSTER),)
_READS_GROUP: Final = (_need(_Op.READ, _Kind.GROUP),)
_WRITES_TRANSACTION: Final = _need(_Op.WRITE, _Kind.TRANSACTIONAL_ID)
_OR_CLUSTER: Final = "or the same operation on the cluster"


def _configs(operation: AclOperation) -> tuple[Need, ...]:
    return (
        _need(operation, _Kind.TOPIC, "of topics"),
        _need(operation, _Kind.GROUP, "of groups"),
        _need(operation, _Kind.CLUSTER, "of brokers"),
    )


#: By Kafka's name of the API; ``AlterLogDirs`` is this project's.
KAFKA_APIS: Final[dict[str, tuple[Need, ...]]] = {
    "Produce": (
        _need(_Op.WRITE, _Kind.TOPIC),
        Need(_Op.WRITE, _Kind.TRANSACTIONAL_ID, "if a batch is transactional", _X53),
    ),
    "Fetch": (
        _need(_Op.READ, _Kind.TOPIC, "of consumers"),
        Need(_Op.CLUSTER_ACTION, _Kind.CLUSTER, "of followers", _T29),
    ),
    "ListOffsets": (_need(_Op.DESCRIBE, _Kind.TOPIC),),
    "OffsetForLeaderEpoch": (_need(_Op.DESCRIBE, _Kind.TOPIC, "or CLUSTER_ACTION on the cluster"),),
    "DeleteRecords": (_need(_Op.DELETE, _Kind.TOPIC),),
    "DescribeProducers": (_need(_Op.READ, _Kind.TOPIC),),
    "Metadata": (
        _need(_Op.DESCRIBE, _Kind.TOPIC, "named topics"),
        _need(_Op.DESCRIBE, _Kind.TOPIC, "all topics", hides=True),
        _need(_Op.CREATE, _Kind.TOPIC, f"automatic creation; {_OR_CLUSTER}"),
    ),
    "DescribeTopicPartitions": (
        _need(_Op.DESCRIBE, _Kind.TOPIC, "named topics"),
        _need(_Op.DESCRIBE, _Kind.TOPIC, "all topics", hides=True),
    ),
    "DescribeCluster": (),
    "CreateTopics": (
        _need(_Op.CREATE, _Kind.TOPIC, _OR_CLUSTER),
        _need(_Op.DESCRIBE_CONFIGS, _Kind.TOPIC, "configurations in the response", hides=True),
    ),
    "DeleteTopics": (_need(_Op.DELETE, _Kind.TOPIC, _OR_CLUSTER),),
    "CreatePartitions": (_need(_Op.ALTER, _Kind.TOPIC),),
    "DescribeConfigs": _configs(_Op.DESCRIBE_CONFIGS),
    "AlterConfigs": _configs(_Op.ALTER_CONFIGS),
    "IncrementalAlterConfigs": _configs(_Op.ALTER_CONFIGS),
    "ListConfigResources": (_need(_Op.DESCRIBE_CONFIGS, _Kind.CLUSTER),),
    "ElectLeaders": _ALTERS,
    "UpdateFeatures": _ALTERS,
    "UnregisterBroker": _ALTERS,
    "UnregisterController": _ALTERS,
    "AddRaftVoter": _ALTERS,
    "RemoveRaftVoter": _ALTERS,
    "AlterPartitionReassignments": _ALTERS,
    "ListPartitionReassignments": _DESCRIBES,
    "DescribeQuorum": _DESCRIBES,
    "DescribeLogDirs": _DESCRIBES,
    "AlterReplicaLogDirs": _ALTERS,
    "AlterLogDirs": _ALTERS,
    "DescribeAcls": _DESCRIBES,
    "CreateAcls": _ALTERS,
    "DeleteAcls": _ALTERS,
    "FindCoordinator": (
        _need(_Op.DESCRIBE, _Kind.GROUP, "of groups"),
        _need(_Op.DESCRIBE, _Kind.TRANSACTIONAL_ID, "of transactions"),
    ),
    "JoinGroup": _READS_GROUP,
    "SyncGroup": _READS_GROUP,
    "Heartbeat": _READS_GROUP,
    "LeaveGroup": _READS_GROUP,
    "OffsetCommit": (*_READS_GROUP, _need(_Op.READ, _Kind.TOPIC)),
    "OffsetFetch": (
        _need(_Op.DESCRIBE, _Kind.GROUP),
        _need(_Op.DESCRIBE, _Kind.TOPIC, "named topics"),
        _need(_Op.DESCRIBE, _Kind.TOPIC, "all topics", hides=True),
    ),
    "OffsetDelete": (_need(_Op.DELETE, _Kind.GROUP), _need(_Op.READ, _Kind.TOPIC)),
    "DescribeGroups": (_need(_Op.DESCRIBE, _Kind.GROUP),),
    "ListGroups": (_need(_Op.DESCRIBE, _Kind.GROUP, "or DESCRIBE on the cluster", hides=True),),
    "DeleteGroups": (_need(_Op.DELETE, _Kind.GROUP),),
    "ConsumerGroupHeartbeat": (
        *_READS_GROUP,
        _need(_Op.DESCRIBE, _Kind.TOPIC, "subscribed by name"),
    ),
    "ConsumerGroupDescribe": (
        _need(_Op.DESCRIBE, _Kind.GROUP),
        _need(_Op.DESCRIBE, _Kind.TOPIC, "assigned topics"),
    ),
    "InitProducerId": (
        _need(_Op.WRITE, _Kind.TRANSACTIONAL_ID, "with a transactional id"),
        _need(_Op.IDEMPOTENT_WRITE, _Kind.CLUSTER, "without; or WRITE on any topic"),
    ),
    "AddPartitionsToTxn": (
        _WRITES_TRANSACTION,
        _need(_Op.WRITE, _Kind.TOPIC),
        _need(_Op.CLUSTER_ACTION, _Kind.CLUSTER, "instead, of brokers (version 4)"),
    ),
    "AddOffsetsToTxn": (_WRITES_TRANSACTION, *_READS_GROUP),
    "EndTxn": (_WRITES_TRANSACTION,),
    "TxnOffsetCommit": (_WRITES_TRANSACTION, *_READS_GROUP, _need(_Op.READ, _Kind.TOPIC)),
    "WriteTxnMarkers": (_need(_Op.CLUSTER_ACTION, _Kind.CLUSTER, "or ALTER on the cluster"),),
    "DescribeTransactions": (
        _need(_Op.DESCRIBE, _Kind.TRANSACTIONAL_ID),
        _need(_Op.DESCRIBE, _Kind.TOPIC, hides=True),
    ),
    "ListTransactions": (_need(_Op.DESCRIBE, _Kind.TRANSACTIONAL_ID, hides=True),),
    "ApiVersions": (),
    "SaslHandshake": (),
    "SaslAuthenticate": (),
    "DescribeClientQuotas": (_need(_Op.DESCRIBE_CONFIGS, _Kind.CLUSTER),),
    "AlterClientQuotas": (_need(_Op.ALTER_CONFIGS, _Kind.CLUSTER),),
    "DescribeUserScramCredentials": _DESCRIBES,
    "AlterUserScramCredentials": _ALTERS,
}

#: Requests of the RPC that a broker forwards for a client, with the rights of the client. All other
#: requests of the RPC are those of members of the cluster, for themselves.
FORWARDED: Final = frozenset(
    {
        *("CreateTopics", "DeleteTopics", "CreatePartitions", "IncrementalAlterConfigs"),
        *("AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders"),
        *("UnregisterBroker", "UnregisterController", "UpdateFeatures", "DescribeQuorum"),
        *("AddRaftVoter", "RemoveRaftVoter", "CreateAcls", "DeleteAcls"),
        *("AlterUserScramCredentials", "AlterClientQuotas"),
    }
)
#: Requests of the RPC that only members of the cluster send.
MEMBERS_ONLY: Final = frozenset(
    {
        *("BrokerRegistration", "BrokerHeartbeat", "AssignReplicasToDirs", "AlterPartition"),
        *("AllocateProducerIds", "FetchMetadata", "FindTopics", "DescribeDynamicConfigs"),
        *("QuorumMessages", "ControllerRegistration", "DescribeCluster"),
        "DescribeControllerConfigs",
    }
)
