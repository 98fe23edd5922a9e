"""PURE. Messages of the RPC between brokers and controllers.

Each message is a frozen pydantic model, validated when it is received; after that it is a plain
value. Names are those of the KIPs and of Kafka, in snake case.

Rules of this file:

* A request names its ``api``, its ``version`` and the class of its ``Response``. Only ``api`` and
  ``version`` are sent, not the names of classes.
* The name of a class ends in ``Rpc`` if the Kafka protocol has a message of the same name.
* An error of the whole request is not a field of its response: the envelope carries it
  (``rpc_codec.py``). A field reports errors only if one request is about several things.
* A field added after 0.1.0 has a default that means "not reported": unknown fields are ignored, and
  older peers do not send it. That is all for responses, for bodies within messages, and for a
  request that an older controller may carry out without the field.
* A field of a request that an older controller must not ignore also has a version of the request
  (:class:`Since`). A request is written in the version of the cluster's ``metadata.version``,
  without the fields that this version lacks.
* Large lists are flat (a list of ints, not of models).
* Ids are sent as 16 raw bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, NamedTuple, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    field_serializer,
    field_validator,
)

from kraftjbod.core.errors import ErrorCode, InvalidUuidText
from kraftjbod.core.ids import (
    MAX_BROKER_ID,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST

U = TypeVar("U", bound=Uuid)


def _as(kind: type[U]) -> Callable[[object], U]:
    def validate(value: object) -> U:
        if not isinstance(value, bytes):
            raise ValueError("a uuid travels as 16 bytes")  # noqa: TRY004 - pydantic reports it
        try:
            return kind(value)
        except InvalidUuidText as e:
            raise ValueError(str(e)) from e

    return validate


WireUuid = Annotated[Uuid, PlainValidator(_as(Uuid))]
WireTopicId = Annotated[TopicId, PlainValidator(_as(TopicId))]
WireDirectoryId = Annotated[DirectoryId, PlainValidator(_as(DirectoryId))]
WireBrokerId = Annotated[BrokerId, Field(ge=0, le=MAX_BROKER_ID)]
#: Limit of a name or address that brokers send to clients, in every version of every response.
MAX_REPEATED_CHARS = 1_000
RepeatedText = Annotated[str, Field(max_length=MAX_REPEATED_CHARS)]
PathText = Annotated[str, Field(max_length=4_096)]
Offset = Annotated[int, Field(ge=-1)]

MAX_DIRECTORIES = 1_000
MAX_PARTITIONS_PER_REQUEST = MAX_NEW_TOPICS = MAX_ITEMS_PER_REQUEST


class RpcBody(BaseModel):
    """Base class of messages and of their parts: immutable. Fields that a newer peer added are
    ignored when a message is received.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class RpcResponse(RpcBody):
    """Base class of the bodies of successful responses. An error of the whole request is in the
    envelope.
    """


class Since(NamedTuple):
    """Marks a field of a request, not of a body within it, with the version that added it."""

    version: int


class RpcRequest(RpcBody):
    """Base class of the bodies of requests. ``api`` and the version are sent in the envelope.

    ``version`` is the newest version. ``first_levels`` has, by version, the lowest
    ``metadata.version`` at which requests use it.
    """

    api: ClassVar[str]
    version: ClassVar[int] = 0
    first_levels: ClassVar[Mapping[int, MetadataVersion]] = {}
    #: A lower version to use if a controller of older software at the same level does not know the
    #: newer one. Nothing in the request may depend on the difference.
    enough: ClassVar[int | None] = None
    #: Field with the id of the broker or controller that sends the request; None for requests that
    #: do not name their sender.
    sender_field: ClassVar[str | None] = None
    Response: ClassVar[type[RpcResponse]]

    metadata_log_id: WireUuid | None = None
    """Which metadata log the sender follows; None if it knows none. A controller of another log
    refuses the request."""
    client_principal: RepeatedText | None = None
    """Principal of the client for which a broker forwards the request; None if the sender requests
    it for itself. Only members of the cluster may send requests, so the text is trusted."""
    client_host: RepeatedText | None = None
    """Numeric address of that client."""

    @property
    def sender_node_id(self) -> BrokerId | None:
        """Id of the node that sends the request; None if the request does not name it."""
        return None if self.sender_field is None else getattr(self, self.sender_field)

    def again(self) -> Self:
        """Return the request to send after the response to this one was lost.

        The controller may have applied this one.
        """
        return self

    @classmethod
    def version_at(cls, level: MetadataVersion) -> int:
        """Return the version that requests use in a cluster whose ``metadata.version`` is
        ``level``."""
        spoken = [version for version, first in cls.first_levels.items() if first <= level]
        return max(spoken, default=cls.version)

    @classmethod
    def fields_after(cls, version: int) -> frozenset[str]:
        """Return the names of the fields that ``version`` lacks."""
        return frozenset(
            name
            for name, field in cls.model_fields.items()
            if any(isinstance(m, Since) and m.version > version for m in field.metadata)
        )


class OnceOnlyRequest(RpcRequest):
    """A request that must not be applied twice; a repetition gets the response of the first
    attempt.

    The sender looks up the state before the change, and names that state in the request. If the
    state differs when a repetition arrives, the first attempt has changed it. Older controllers
    ignore this, and respond that the object does not exist.
    """

    is_repeated: bool = False

    def again(self) -> Self:
        return self.model_copy(update={"is_repeated": True})


# --- brokers: registration and heartbeat ---------------------------------------------------------


class ListenerInfo(RpcBody):
    """A listener of a broker or controller: its name, and the advertised host and port."""

    name: RepeatedText
    host: RepeatedText
    port: int = Field(ge=1, le=65535)


class BrokerRegistrationResponse(RpcResponse):
    broker_epoch: BrokerEpoch
    metadata_offset: int = -1
    """Offset of the metadata entry with the registration and its consequences; -1 if unknown.

    If the same incarnation registers again, its broker epoch stays and is lower than this offset.
    """
    metadata_log_id: WireUuid | None = None
    """Id of the controller's metadata log; None if the log was created before logs had ids."""
    session_timeout_ms: int = Field(default=0, ge=0)
    """Length of the broker's session from now on; 0 from a controller that does not report it."""


class BrokerRegistrationRequest(RpcRequest):
    """Register an incarnation of a broker (KIP-858, "Broker registration").

    ``log_dirs`` are the ids of the available log directories, ``log_dir_paths`` their paths in the
    same order, and ``cordoned_log_dirs`` the ids of directories that accept no new replicas
    (KIP-1066).

    A registered incarnation may register again: with directories that were reattached or added, and
    without the directories that ``forgotten_log_dirs`` removes permanently. Other missing
    directories are offline.

    ``previous_broker_epoch`` is the epoch that a clean shutdown stored, or -1.
    """

    api = "BrokerRegistration"
    sender_field = "broker_id"
    version = 4
    first_levels = {
        1: MetadataVersion.IV_3_6_IV2,
        3: MetadataVersion.IV_3_7_IV2,
        4: MetadataVersion.IV_4_3_IV0,
    }
    Response = BrokerRegistrationResponse

    broker_id: WireBrokerId
    cluster_id: str
    incarnation_id: WireUuid
    listeners: tuple[ListenerInfo, ...] = Field(min_length=1, max_length=16)
    rack: RepeatedText | None = None
    features: dict[RepeatedText, tuple[int, int]] = Field(default_factory=dict, max_length=100)
    log_dirs: Annotated[tuple[WireDirectoryId, ...], Since(2)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    log_dir_paths: Annotated[tuple[PathText, ...], Since(2)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    cordoned_log_dirs: Annotated[tuple[WireDirectoryId, ...], Since(4)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    previous_broker_epoch: Annotated[BrokerEpoch, Since(3)] = BrokerEpoch(-1)
    forgotten_log_dirs: Annotated[tuple[WireDirectoryId, ...], Since(4)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    """Permanently lost directories of this broker; their replicas are recreated."""
    clean_shutdown_epochs: Annotated[tuple[BrokerEpoch, ...], Since(3)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    """For each item of ``log_dirs``, the broker epoch in which its logs were last complete.

    -1 for an unknown epoch; empty if all are unknown. At a start, the epoch is in the clean
    shutdown mark of the directory. When an incarnation registers again, it is the current broker
    epoch for each directory that stayed online since the last response.
    """
    clean_shutdown_incarnations: Annotated[tuple[WireUuid, ...], Since(3)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    """For each item of ``clean_shutdown_epochs``, the incarnation of the broker with that epoch.

    Epochs are offsets of one metadata log, so another log may have given the same epoch to another
    incarnation. ``NO_INCARNATION`` if the mark does not name it.
    """
    applied_metadata_offset: Offset = -1
    """A lower bound of the metadata offset that the broker has applied."""


class ImpairedLogDir(RpcBody):
    """A directory that is registered and online, but saturated or stalled."""

    directory_id: WireDirectoryId
    state: LogDirState

    @field_validator("state")
    @classmethod
    def _is_impaired(cls, state: LogDirState) -> LogDirState:
        if not state.is_impaired:
            raise ValueError(f"{state.value} is no impairment: saturated and stalled are")
        return state

    @field_serializer("state")
    def _as_text(self, state: LogDirState) -> str:
        return state.value


class BrokerHeartbeatResponse(RpcResponse):
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    metadata_offset: Offset = -1
    """Offset of the controller's metadata; -1 from a controller that does not report it."""
    session_timeout_ms: int = Field(default=0, ge=0)
    """Length of the broker's session from now on; 0 from a controller that does not report it."""


class BrokerHeartbeatRequest(RpcRequest):
    """Report that the broker is alive, the metadata offset that it has applied, and its bad
    directories.

    ``offline_log_dirs`` is cumulative for the incarnation, so its size depends on the number of
    directories and never on the number of replicas (KIP-858). ``impaired_log_dirs`` is not
    cumulative: a directory that is missing has recovered (KIP-928).
    """

    api = "BrokerHeartbeat"
    sender_field = "broker_id"
    version = 2
    first_levels = {
        0: MetadataVersion.IV_3_6_IV2,
        1: MetadataVersion.IV_3_7_IV2,
        2: MetadataVersion.IV_4_3_IV0,
    }
    Response = BrokerHeartbeatResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch
    current_metadata_offset: Offset
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Annotated[tuple[WireDirectoryId, ...], Since(1)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    cordoned_log_dirs: Annotated[tuple[WireDirectoryId, ...] | None, Since(2)] = Field(
        default=None, max_length=MAX_DIRECTORIES
    )
    """None: not reported. An empty tuple: no directory is cordoned."""
    impaired_log_dirs: Annotated[tuple[ImpairedLogDir, ...] | None, Since(2)] = Field(
        default=None, max_length=MAX_DIRECTORIES
    )
    """None: not reported. An empty tuple: no directory is impaired."""
    max_replicas: int = Field(default=-1, ge=-1)
    """Number of replicas that the broker's limit of open files permits; -1: not reported."""


# --- brokers: replicas ---------------------------------------------------------------------------


class AssignedTopic(RpcBody):
    """Partitions of one topic that are in one directory."""

    topic_id: WireTopicId
    partitions: tuple[int, ...]


class AssignedDirectory(RpcBody):
    """The replicas that are in one directory, or that the metadata should assign to it."""

    directory_id: WireDirectoryId
    topics: tuple[AssignedTopic, ...]


class RefusedAssignment(RpcBody):
    """A partition whose assignment was rejected, and the reason."""

    topic_id: WireTopicId
    partition: int
    error_code: ErrorCode


class AssignReplicasToDirsResponse(RpcResponse):
    """All assignments except the ``refused`` ones were accepted."""

    refused: tuple[RefusedAssignment, ...] = ()


class AssignReplicasToDirsRequest(RpcRequest):
    """Report the directories of the sender's replicas (KIP-858)."""

    api = "AssignReplicasToDirs"
    sender_field = "broker_id"
    Response = AssignReplicasToDirsResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch
    directories: tuple[AssignedDirectory, ...] = Field(max_length=MAX_DIRECTORIES)


class PartitionIsr(RpcBody):
    """The ISR that a leader requests, and the state on which the request is based.

    ``isr_broker_epochs`` has one item per item of ``isr``; -1 means "not known", which is accepted
    for a member of the current ISR.

    ``metadata_offset`` is the leader's metadata offset at the time of the request. A broker that
    registered after that offset may have fewer records than the leader assumes. Older leaders send
    -1.
    """

    topic_id: WireTopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    isr_broker_epochs: tuple[BrokerEpoch, ...]
    metadata_offset: int = -1


class AlteredPartition(RpcBody):
    """The result for one partition: an error, or the current leader and ISR."""

    topic_id: WireTopicId
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    leader: BrokerId = BrokerId(-1)
    leader_epoch: LeaderEpoch = LeaderEpoch(-1)
    partition_epoch: PartitionEpoch = PartitionEpoch(-1)
    isr: tuple[BrokerId, ...] = ()


class AlterPartitionResponse(RpcResponse):
    partitions: tuple[AlteredPartition, ...]


class AlterPartitionRequest(RpcRequest):
    """Request changes of the ISRs of partitions that the sender leads."""

    api = "AlterPartition"
    sender_field = "broker_id"
    Response = AlterPartitionResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[PartitionIsr, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class AllocateProducerIdsResponse(RpcResponse):
    """The sender owns ``producer_id_count`` ids from ``producer_id_start``."""

    producer_id_start: int
    producer_id_count: int


class AllocateProducerIdsRequest(RpcRequest):
    """Reserve the next block of producer ids for a broker (KIP-730)."""

    api = "AllocateProducerIds"
    sender_field = "broker_id"
    Response = AllocateProducerIdsResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch


# --- forwarded admin requests --------------------------------------------------------------------


class MutatingClient(RpcBody):
    """The client whose quota of controller mutations a request uses (KIP-599).

    ``is_strict``: topics beyond the quota are refused with THROTTLING_QUOTA_EXCEEDED.
    """

    user: str
    client_id: str
    is_strict: bool = False


class NewTopic(RpcBody):
    """A topic to create. -1 stands for the cluster's default.

    ``assignments`` has the replicas by partition, the preferred leader first. If it is given,
    ``num_partitions`` and ``replication_factor`` are -1.
    """

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: dict[int, tuple[BrokerId, ...]] = Field(default_factory=dict)
    configs: dict[str, str | None] = Field(default_factory=dict)


class CreatedTopic(RpcBody):
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    topic_id: WireTopicId = TopicId(bytes(16))
    num_partitions: int = -1
    replication_factor: int = -1


class CreateTopicsResponseRpc(RpcResponse):
    topics: tuple[CreatedTopic, ...]
    throttle_time_ms: int = 0


class CreateTopicsRequestRpc(RpcRequest):
    """Create topics. Each topic gets its own result, so an invalid topic does not affect the
    others."""

    api = "CreateTopics"
    version = 1
    first_levels = {0: MetadataVersion.IV_3_6_IV2, 1: MetadataVersion.IV_4_3_IV0}
    enough = 0
    Response = CreateTopicsResponseRpc

    topics: tuple[NewTopic, ...] = Field(max_length=MAX_NEW_TOPICS)
    validate_only: bool = False
    #: Ids for ``topics``, in the same order, generated by the sender. The first 12 bytes are the
    #: beginning of the topic's id, so that a repeated request finds the topics already created.
    topic_ids: Annotated[tuple[WireTopicId, ...], Since(1)] = Field((), max_length=MAX_NEW_TOPICS)
    charged: MutatingClient | None = None


class TopicRef(RpcBody):
    """A topic by name, or by id if ``name`` is None."""

    name: str | None = None
    topic_id: WireTopicId = TopicId(bytes(16))


class FoundTopic(RpcBody):
    """Result for the topic ``asked``: its current ``topic_id``, or an error."""

    asked: TopicRef
    topic_id: WireTopicId = TopicId(bytes(16))
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class FindTopicsResponse(RpcResponse):
    """Results in the order of the request."""

    topics: tuple[FoundTopic, ...]


class FindTopicsRequest(RpcRequest):
    """Look up topics in the newest state, which includes changes that are not committed yet.

    Requests that change a topic start with this lookup. A repeated change then cannot affect
    another topic that was created with the same name.
    """

    api = "FindTopics"
    Response = FindTopicsResponse

    topics: tuple[TopicRef, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class DeletedTopic(RpcBody):
    name: str | None
    topic_id: WireTopicId
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class DeleteTopicsResponseRpc(RpcResponse):
    topics: tuple[DeletedTopic, ...]
    throttle_time_ms: int = 0


class DeleteTopicsRequestRpc(OnceOnlyRequest):
    """Delete topics by name or id. If the request names an id, the topic existed at the sender's
    first attempt."""

    api = "DeleteTopics"
    Response = DeleteTopicsResponseRpc

    topics: tuple[TopicRef, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    charged: MutatingClient | None = None


class MorePartitions(RpcBody):
    """A topic whose number of partitions becomes ``count``.

    ``assignments`` is None or lists the replicas of the added partitions only. ``topic_id`` is the
    id of the topic that the sender found with fewer than ``count`` partitions.
    """

    name: str
    count: int
    topic_id: WireTopicId = TopicId(bytes(16))
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


class GrownTopic(RpcBody):
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class CreatePartitionsResponseRpc(RpcResponse):
    topics: tuple[GrownTopic, ...]
    throttle_time_ms: int = 0


class CreatePartitionsRequestRpc(OnceOnlyRequest):
    """Raise the number of partitions of topics (KIP-195)."""

    api = "CreatePartitions"
    Response = CreatePartitionsResponseRpc

    topics: tuple[MorePartitions, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    validate_only: bool = False
    charged: MutatingClient | None = None


class FeatureUpdate(RpcBody):
    """A new level of one feature (KIP-584).

    ``upgrade_type`` has Kafka's numbers: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade.
    """

    name: str
    level: int = Field(ge=0)
    upgrade_type: int = Field(ge=1, le=3)


class FeatureOutcome(RpcBody):
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class UpdateFeaturesResponseRpc(RpcResponse):
    results: tuple[FeatureOutcome, ...]


class UpdateFeaturesRequestRpc(RpcRequest):
    """Change the levels of features: all updates, or none of them."""

    api = "UpdateFeatures"
    Response = UpdateFeaturesResponseRpc

    updates: tuple[FeatureUpdate, ...] = Field(max_length=100)
    validate_only: bool = False
