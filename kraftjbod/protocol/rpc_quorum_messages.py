"""PURE. RPC messages for the metadata quorum: Raft's messages, followers, and descriptions.

Raft's messages are bodies of this RPC. They are one-way: the response only acknowledges receipt.
Names are those of ``raft/machine/messages``, from which ``raft/wire.py`` builds the bodies. Sender
and receiver are stated once per request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.protocol.rpc_messages import (
    Offset,
    OnceOnlyRequest,
    RepeatedText,
    RpcBody,
    RpcRequest,
    RpcResponse,
    WireBrokerId,
    WireDirectoryId,
    WireUuid,
)

Term = Annotated[int, Field(ge=0)]
#: Last offset of a snapshot and its term.
SnapshotIdBody = tuple[int, int]
#: First offset of a term, and the term.
TermStartBody = tuple[int, int]
MAX_TERMS: Final = 1_000
#: Limit of messages in one request.
MAX_MESSAGES: Final = 64
MAX_ENDPOINTS: Final = 16
MAX_FEATURES: Final = 100


class EntryBody(RpcBody):
    offset: Annotated[int, Field(ge=0)]
    term: Term
    payload: bytes
    kind: Annotated[int, Field(ge=0, le=1)] = 0


class PreVoteBody(RpcBody):
    kind: Literal["PreVote"]
    term: Term
    last_offset: Offset
    last_term: Term


class VoteBody(RpcBody):
    kind: Literal["Vote"]
    term: Term
    last_offset: Offset
    last_term: Term
    is_transfer: bool = False


class PreVoteReplyBody(RpcBody):
    kind: Literal["PreVoteReply"]
    term: Term
    granted: bool


class VoteReplyBody(RpcBody):
    kind: Literal["VoteReply"]
    term: Term
    granted: bool


class AppendBody(RpcBody):
    kind: Literal["Append"]
    term: Term
    previous_offset: Offset
    previous_term: Term
    entries: tuple[EntryBody, ...] = ()
    committed_offset: Offset = -1
    sent_tick: Offset = -1


class AppendReplyBody(RpcBody):
    kind: Literal["AppendReply"]
    term: Term
    durable_offset: Offset
    sent_tick: Offset = -1


class AppendRejectedBody(RpcBody):
    kind: Literal["AppendRejected"]
    term: Term
    previous_offset: Offset
    hint: SnapshotIdBody
    sent_tick: Offset = -1


class SnapshotSliceBody(RpcBody):
    kind: Literal["SnapshotSlice"]
    term: Term
    snapshot: SnapshotIdBody
    position: Annotated[int, Field(ge=0)]
    data: bytes
    is_last: bool
    voters: bytes = b""
    terms: Annotated[tuple[TermStartBody, ...], Field(max_length=MAX_TERMS)] = ()
    crc: int | None = None


class SnapshotReplyBody(RpcBody):
    kind: Literal["SnapshotReply"]
    term: Term
    snapshot: SnapshotIdBody
    next_position: Annotated[int, Field(ge=0)]


class TimeoutNowBody(RpcBody):
    kind: Literal["TimeoutNow"]
    term: Term


class ObserveBody(RpcBody):
    kind: Literal["Observe"]
    term: Term


QuorumMessageBody = Annotated[
    PreVoteBody
    | VoteBody
    | PreVoteReplyBody
    | VoteReplyBody
    | AppendBody
    | AppendReplyBody
    | AppendRejectedBody
    | SnapshotSliceBody
    | SnapshotReplyBody
    | TimeoutNowBody
    | ObserveBody,
    Field(discriminator="kind"),
]


_BODY: Final[TypeAdapter[QuorumMessageBody]] = TypeAdapter(QuorumMessageBody)


def quorum_message_body(fields: Mapping[str, object]) -> QuorumMessageBody:
    """Return the message body with ``fields``; the field ``kind`` determines the class.

    :raises ValueError: the fields are not valid.
    """
    return _BODY.validate_python(fields)


class QuorumMessagesResponse(RpcResponse):
    """Receipt of the messages; replies to them are separate messages.

    ``directories`` is set if the request asks for it: the recorded directory id of each voter of a
    static quorum.
    """

    directories: dict[WireBrokerId, WireDirectoryId] = Field(default_factory=dict)


class QuorumMessagesRequest(RpcRequest):
    """Messages of one controller to another, in order.

    ``sender_directory_id`` identifies the disk with the sender's vote and log: the same node with
    another disk has lost its vote. ``receiver_id`` is the expected receiver, and
    ``receiver_directory_id`` its expected disk, or None if voters are identified by node id alone.

    ``sender_endpoint`` (``NAME://host:port``) is the sender's address. ``sender_features`` has the
    lowest and highest level that the sender supports, by feature. The leader registers the sender
    with both (KIP-919). Older software sends neither.

    ``metadata_log_id`` is the id of the sender's log, once it is committed there.

    ``asks_for_directories``: the request only asks for recorded directories, and the receiver does
    not record the sender.
    """

    api = "QuorumMessages"
    sender_field = "sender_id"
    Response = QuorumMessagesResponse

    cluster_id: RepeatedText
    sender_id: WireBrokerId
    sender_directory_id: WireDirectoryId
    receiver_id: WireBrokerId
    receiver_directory_id: WireDirectoryId | None = None
    sender_endpoint: RepeatedText = ""
    sender_features: dict[RepeatedText, tuple[int, int]] = Field(
        default_factory=dict, max_length=MAX_FEATURES
    )
    messages: tuple[QuorumMessageBody, ...] = Field(max_length=MAX_MESSAGES)
    asks_for_directories: bool = False
    metadata_log_id: WireUuid | None = None


# --- brokers that follow the metadata log -------------------------------------------------------


class MetadataEntry(RpcBody):
    """One committed entry of the metadata log: records that are applied together.

    ``metadata/record_codec.py`` encodes ``payload``.
    """

    offset: Offset
    epoch: int
    payload: bytes


class FetchMetadataResponse(RpcResponse):
    """Either ``entries`` from the requested offset, or the whole state at ``snapshot_offset``.

    ``snapshot_offset`` is -1, or the offset of the last entry in the snapshot. A snapshot is sent
    in pieces: ``snapshot_chunk`` starts at the requested position, and ``snapshot_next_position``
    is -1 after the last piece.

    ``high_watermark`` is the offset of the last committed entry; -1 if no entry is committed.

    ``metadata_log_id`` is the id of the log; None from software that has no such ids.

    ``controller_id`` is the responding controller, ``controller_epoch`` its term, and ``is_active``
    whether it is the leader. Snapshots differ between controllers, so pieces must not be mixed.

    ``snapshot_epoch`` is the epoch of the last entry in the snapshot, in its first piece; else -1.

    ``snapshot_crc`` is the CRC of the whole snapshot, in each piece. A controller that replaces a
    damaged snapshot may write the same state in another order.

    ``controllers`` are the voters, as ``id@host:port``, if the metadata log names them.
    """

    high_watermark: Offset
    controller_id: BrokerId = BrokerId(-1)
    controller_epoch: int = 0
    is_active: bool = True
    metadata_log_id: WireUuid | None = None
    entries: tuple[MetadataEntry, ...] = ()
    snapshot_offset: Offset = -1
    snapshot_epoch: int = -1
    snapshot_chunk: bytes = b""
    snapshot_next_position: int = -1
    snapshot_crc: int | None = None
    controllers: tuple[RepeatedText, ...] = ()


class FetchMetadataRequest(RpcRequest):
    """Wait up to ``max_wait_ms`` for committed entries from ``fetch_offset``.

    ``snapshot_offset`` and ``snapshot_position`` continue a snapshot; -1 and 0 otherwise.
    ``metadata_log_id`` is the log that the broker has followed, or None. With it and
    ``applied_metadata_offset``, any controller that has as many entries may respond.
    ``applied_metadata_epoch`` is the epoch of the entry at that offset, or None. If the controller
    has another epoch there, controllers that had lost the entry replaced it (compare
    ``LastFetchedEpoch`` in KIP-595).
    """

    api = "FetchMetadata"
    sender_field = "broker_id"
    Response = FetchMetadataResponse

    broker_id: WireBrokerId
    fetch_offset: Offset
    max_wait_ms: int = Field(ge=0, le=60_000)
    max_bytes: int = Field(ge=1)
    snapshot_offset: Offset = -1
    snapshot_position: int = Field(default=0, ge=0)
    metadata_log_id: WireUuid | None = None
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    """Identifies the sender as a registered broker to the controller's listener."""
    applied_metadata_offset: Offset | None = None
    applied_metadata_epoch: int | None = None


# --- questions about the quorum -----------------------------------------------------------------


class QuorumReplica(RpcBody):
    """One replica of the metadata log, as the leader knows it.

    ``log_end_offset`` is the offset after the last durable entry. Times are wall-clock ms. -1 means
    unknown. ``endpoints`` are ``NAME://host:port``, for voters only.
    """

    node_id: WireBrokerId
    directory_id: WireDirectoryId | None = None
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    endpoints: Annotated[tuple[RepeatedText, ...], Field(max_length=MAX_ENDPOINTS)] = ()


class DescribeQuorumResponseRpc(RpcResponse):
    """The quorum. ``node_id`` is the responding controller; ``leader_id`` is -1 if no leader is
    known.

    ``high_watermark`` is the offset after the last committed entry, -1 if unknown. ``refusal`` is
    the reason why the leader does not accept the responding controller as a voter; None if it does.
    """

    node_id: WireBrokerId
    cluster_id: RepeatedText
    leader_id: int = -1
    leader_epoch: int = 0
    high_watermark: int = -1
    voters: tuple[QuorumReplica, ...] = ()
    observers: tuple[QuorumReplica, ...] = ()
    refusal: str | None = None


class DescribeQuorumRequestRpc(RpcRequest):
    """Request the state of the quorum from its leader, or with ``of_any`` from any controller.

    A controller that is not the leader reports only the leader, the voters and the high watermark
    that it knows, and no observers.
    """

    api = "DescribeQuorum"
    Response = DescribeQuorumResponseRpc

    of_any: bool = False


class AddRaftVoterResponseRpc(RpcResponse):
    """The controller is a voter, or will be once the change is committed."""


class AddRaftVoterRequestRpc(OnceOnlyRequest):
    """Add a controller to the voters (KIP-853), after the controller caught up with the metadata
    log.

    ``was_checked``: before its first attempt the sender verified that it was not a voter.
    """

    api = "AddRaftVoter"
    Response = AddRaftVoterResponseRpc

    voter_id: WireBrokerId
    directory_id: WireDirectoryId
    endpoints: Annotated[tuple[RepeatedText, ...], Field(max_length=MAX_ENDPOINTS)]
    ack_when_committed: bool = True
    was_checked: bool = False


class RemoveRaftVoterResponseRpc(RpcResponse):
    """The controller is no longer a voter."""


class RemoveRaftVoterRequestRpc(OnceOnlyRequest):
    """Remove a controller from the voters, whether it is reachable or not.

    ``was_checked``: before its first attempt the sender verified that it was a voter.
    """

    api = "RemoveRaftVoter"
    Response = RemoveRaftVoterResponseRpc

    voter_id: WireBrokerId
    directory_id: WireDirectoryId
    was_checked: bool = False
