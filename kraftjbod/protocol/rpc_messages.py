"""PURE. Bodies of the RPC between brokers and controllers.

One frozen pydantic model per message, validated at the door; inside they are plain
values. Names are those of the KIPs and of Kafka, in snake case.

Rules of this file:

* a request names its ``api``, its ``version`` and the class of its ``Response``;
* an error of the whole request is never a field of its response: the envelope carries it
  (``rpc_codec.py``); a field only reports errors where one request is about many things;
* a field that a newer version adds has a default and names the version; a request is written in
  the version of the cluster's ``metadata.version`` and leaves out what that does not have;
* unknown fields are ignored;
* large lists are flat (a list of ints, not a model per element);
* ids travel as 16 raw bytes.
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
#: A name or an address that brokers repeat to clients, in every version of every answer.
MAX_REPEATED_CHARS = 1_000
RepeatedText = Annotated[str, Field(max_length=MAX_REPEATED_CHARS)]
PathText = Annotated[str, Field(max_length=4_096)]
Offset = Annotated[int, Field(ge=-1)]

MAX_DIRECTORIES = 1_000
MAX_PARTITIONS_PER_REQUEST = MAX_NEW_TOPICS = MAX_ITEMS_PER_REQUEST


class RpcBody(BaseModel):
    """What every body has in common: immutable, and lenient towards newer peers."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=False)


class RpcResponse(RpcBody):
    """A successful answer."""


class Since(NamedTuple):
    """Marks a field with the version of its request that brought it."""

    version: int


class RpcRequest(RpcBody):
    """A question; ``api`` and a version go into the envelope.

    ``version`` is the newest, ``first_levels`` says from which level on each version is spoken.
    """

    api: ClassVar[str]
    version: ClassVar[int] = 0
    first_levels: ClassVar[Mapping[int, MetadataVersion]] = {}
    #: An older one that does where a controller of older software, at the same level, knows no
    #: newer one: nothing that is asked for is lost by it.
    enough: ClassVar[int | None] = None
    Response: ClassVar[type[RpcResponse]]

    metadata_log_id: WireUuid | None = None
    """Which metadata log the sender follows; None if it knows none. A controller of another log
    refuses the request."""

    def again(self) -> Self:
        """What to ask where this may have been done already, and only its answer was lost."""
        return self

    @classmethod
    def version_at(cls, level: MetadataVersion) -> int:
        """The version that a cluster at ``level`` speaks."""
        spoken = [version for version, first in cls.first_levels.items() if first <= level]
        return max(spoken, default=cls.version)

    @classmethod
    def fields_after(cls, version: int) -> frozenset[str]:
        """Names of the fields that ``version`` does not have."""
        return frozenset(
            name
            for name, field in cls.model_fields.items()
            if any(isinstance(m, Since) and m.version > version for m in field.metadata)
        )


class OnceOnlyRequest(RpcRequest):
    """What may not be done twice, and is answered the second time as it was the first.

    That holds for what whoever asks has found there before it asked at first, and names as such; so
    what is gone when it asks again, or changed, went by this very request. Older controllers do not
    heed it, and answer that it is not there.
    """

    is_repeated: bool = False

    def again(self) -> Self:
        return self.model_copy(update={"is_repeated": True})


# --- brokers: registration and heartbeat ---------------------------------------------------------


class ListenerInfo(RpcBody):
    """One address under which clients reach a broker."""

    name: RepeatedText
    host: RepeatedText
    port: int = Field(ge=1, le=65535)


class BrokerRegistrationResponse(RpcResponse):
    broker_epoch: BrokerEpoch
    metadata_offset: int = -1
    """Offset of the entry that made the registration and all that followed from it; -1: unknown.

    The broker epoch of an amendment is older than that.
    """
    metadata_log_id: WireUuid | None = None
    """Id of the controller's metadata log; None if the log was created before logs had ids."""
    session_timeout_ms: int = Field(default=0, ge=0)
    """Length of the broker's session from now on; 0 from a controller that does not report it."""


class BrokerRegistrationRequest(RpcRequest):
    """A broker introduces this incarnation of itself (KIP-858, "Broker registration").

    ``log_dirs`` are the ids of its available log directories, ``log_dir_paths`` where each of them
    is, in the same order, and ``cordoned_log_dirs`` those that take no new replicas (KIP-1066).
    The same incarnation may register again, with directories that came back, that are new to the
    cluster, or without those that ``forgotten_log_dirs`` releases for good; what it leaves out
    without forgetting it is offline.
    ``previous_broker_epoch`` is the one its clean shutdown left, or -1.
    """

    api = "BrokerRegistration"
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
    """Directories that this broker had and never will have again; their replicas are made anew."""
    clean_shutdown_epochs: Annotated[tuple[BrokerEpoch, ...], Since(3)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    """Up to which broker epoch the contents of each of ``log_dirs`` are known to be whole.

    In their order; -1 where nothing is known, empty if nothing is known of any. At a start it is
    what the directory's clean-shutdown mark says; in a later registration of the same incarnation
    the present epoch for a directory that was served without a break since the last answer.
    """
    clean_shutdown_incarnations: Annotated[tuple[WireUuid, ...], Since(3)] = Field(
        default=(), max_length=MAX_DIRECTORIES
    )
    """Which incarnation had that epoch, in the same order: epochs are offsets of one metadata log,
    and another log may give the same. ``NO_INCARNATION`` where the mark does not say.
    """
    applied_metadata_offset: Offset = -1
    """How far the broker has followed its metadata log, at least."""


class ImpairedLogDir(RpcBody):
    """A directory that is registered and online, but whose replicas shall not count for now."""

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
    """A broker is alive, this far in the metadata, and these of its directories are offline.

    ``offline_log_dirs`` is cumulative for the life of the incarnation, so its size depends on the
    number of directories and never on the number of replicas (KIP-858).
    ``impaired_log_dirs`` is not: a directory that it leaves out has recovered (KIP-928).
    """

    api = "BrokerHeartbeat"
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
    """None says nothing; an empty tuple says that none is cordoned."""
    impaired_log_dirs: Annotated[tuple[ImpairedLogDir, ...] | None, Since(2)] = Field(
        default=None, max_length=MAX_DIRECTORIES
    )
    """None says nothing; an empty tuple says that none is impaired."""
    max_replicas: int = Field(default=-1, ge=-1)
    """How many replicas it can hold with the files that it may have open; -1: it does not say."""


# --- brokers: replicas ---------------------------------------------------------------------------


class AssignedTopic(RpcBody):
    """Partitions of one topic that live in one directory."""

    topic_id: WireTopicId
    partitions: tuple[int, ...]


class AssignedDirectory(RpcBody):
    """What lives in one directory, or what is to be corrected into it."""

    directory_id: WireDirectoryId
    topics: tuple[AssignedTopic, ...]


class RefusedAssignment(RpcBody):
    """One partition whose assignment was not accepted, and why."""

    topic_id: WireTopicId
    partition: int
    error_code: ErrorCode


class AssignReplicasToDirsResponse(RpcResponse):
    """All assignments were accepted but the ``refused`` ones."""

    refused: tuple[RefusedAssignment, ...] = ()


class AssignReplicasToDirsRequest(RpcRequest):
    """A broker reports which directory holds which of its replicas (KIP-858)."""

    api = "AssignReplicasToDirs"
    Response = AssignReplicasToDirsResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch
    directories: tuple[AssignedDirectory, ...] = Field(max_length=MAX_DIRECTORIES)


class PartitionIsr(RpcBody):
    """The in-sync set that a leader wants, and the state that it bases the wish on.

    ``isr_broker_epochs`` runs parallel to ``isr``; -1 stands for "not known", which is good enough
    for one that is in sync already.
    ``metadata_offset`` is how far the leader had followed the metadata when it made the wish: whose
    broker registered after that may hold less than it knows. -1 comes from older leaders.
    """

    topic_id: WireTopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]
    isr_broker_epochs: tuple[BrokerEpoch, ...]
    metadata_offset: int = -1


class AlteredPartition(RpcBody):
    """The outcome for one partition: an error, or the state that now holds."""

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
    """A leader asks for other in-sync sets."""

    api = "AlterPartition"
    Response = AlterPartitionResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[PartitionIsr, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class AllocateProducerIdsResponse(RpcResponse):
    """``producer_id_count`` ids from ``producer_id_start`` on belong to the asking broker."""

    producer_id_start: int
    producer_id_count: int


class AllocateProducerIdsRequest(RpcRequest):
    api = "AllocateProducerIds"
    Response = AllocateProducerIdsResponse

    broker_id: WireBrokerId
    broker_epoch: BrokerEpoch


# --- forwarded admin requests --------------------------------------------------------------------


class NewTopic(RpcBody):
    """``num_partitions`` and ``replication_factor`` are -1 where ``assignments`` decides.

    ``assignments`` maps a partition to its replicas, the preferred leader first.
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


class CreateTopicsResponse(RpcResponse):
    topics: tuple[CreatedTopic, ...]


class CreateTopicsRequest(RpcRequest):
    api = "CreateTopics"
    version = 1
    first_levels = {0: MetadataVersion.IV_3_6_IV2, 1: MetadataVersion.IV_4_3_IV0}
    enough = 0
    Response = CreateTopicsResponse

    topics: tuple[NewTopic, ...] = Field(max_length=MAX_NEW_TOPICS)
    validate_only: bool = False
    #: In the order of ``topics``, drawn by who asks; a topic's id begins with the first 12 bytes:
    #: asking again finds what was made before.
    topic_ids: Annotated[tuple[WireTopicId, ...], Since(1)] = Field((), max_length=MAX_NEW_TOPICS)


class TopicRef(RpcBody):
    """A topic by name, or by id where ``name`` is None."""

    name: str | None = None
    topic_id: WireTopicId = TopicId(bytes(16))


class FoundTopic(RpcBody):
    """``asked`` is found as ``topic_id`` now, or not, for a reason."""

    asked: TopicRef
    topic_id: WireTopicId = TopicId(bytes(16))
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class FindTopicsResponse(RpcResponse):
    """In the order in which they were asked for."""

    topics: tuple[FoundTopic, ...]


class FindTopicsRequest(RpcRequest):
    """Which topics these are now, as all that was decided until then says.

    What changes a topic asks this first, so that asking for the change again cannot meet another
    topic that has the name by then.
    """

    api = "FindTopics"
    Response = FindTopicsResponse

    topics: tuple[TopicRef, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class DeletedTopic(RpcBody):
    name: str | None
    topic_id: WireTopicId
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class DeleteTopicsResponse(RpcResponse):
    topics: tuple[DeletedTopic, ...]


class DeleteTopicsRequest(OnceOnlyRequest):
    """What is named by its id was there when it was asked for at first."""

    api = "DeleteTopics"
    Response = DeleteTopicsResponse

    topics: tuple[TopicRef, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class MorePartitions(RpcBody):
    """``assignments`` lists the replicas of the added partitions only, or is None.

    ``topic_id`` is of the topic that was found, and had less than ``count`` partitions.
    """

    name: str
    count: int
    topic_id: WireTopicId = TopicId(bytes(16))
    assignments: tuple[tuple[BrokerId, ...], ...] | None = None


class GrownTopic(RpcBody):
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class CreatePartitionsResponse(RpcResponse):
    topics: tuple[GrownTopic, ...]


class CreatePartitionsRequest(OnceOnlyRequest):
    api = "CreatePartitions"
    Response = CreatePartitionsResponse

    topics: tuple[MorePartitions, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    validate_only: bool = False


class FeatureUpdate(RpcBody):
    """``upgrade_type`` is Kafka's: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade (KIP-584)."""

    name: str
    level: int = Field(ge=0)
    upgrade_type: int = Field(ge=1, le=3)


class FeatureOutcome(RpcBody):
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class UpdateFeaturesResponse(RpcResponse):
    results: tuple[FeatureOutcome, ...]


class UpdateFeaturesRequest(RpcRequest):
    """All updates take effect, or none does."""

    api = "UpdateFeatures"
    Response = UpdateFeaturesResponse

    updates: tuple[FeatureUpdate, ...] = Field(max_length=100)
    validate_only: bool = False
