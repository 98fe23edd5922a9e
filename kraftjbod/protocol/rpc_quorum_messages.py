"""PURE. What controllers of one quorum say to each other and to those who follow their log, and
what they are asked about it.

Raft's messages are bodies of our RPC. They are one-way: the answer says only that they came. Names
are those of ``raft/machine/messages``, which ``raft/wire.py`` makes of them; who sends and to whom
stands once, beside all of them.
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
#: Last offset and its term.
SnapshotIdBody = tuple[int, int]
#: First offset of a term, and the term.
TermStartBody = tuple[int, int]
MAX_TERMS: Final = 1_000
#: As many as a link sends at once.
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
    """The body of the ``kind`` that is among ``fields``."""
    return _BODY.validate_python(fields)


class QuorumMessagesResponse(RpcResponse):
    """They came; what they bring is said by messages the other way.

    ``directories``, if the request asks for them: from which disk each voter of a static quorum
    votes, as far as the receiver has heard of them.
    """

    directories: dict[WireBrokerId, WireDirectoryId] = Field(default_factory=dict)


class QuorumMessagesRequest(RpcRequest):
    """Messages of one controller to another, in their order.

    ``sender_directory_id`` is of the disk that holds the sender's vote and its log: the same node
    with another one has forgotten what it promised. ``receiver_id`` is whom it takes the receiver
    for; ``receiver_directory_id`` likewise, None where voters are told by their node alone.
    ``sender_endpoint``, ``NAME://host:port``, is where it is reached, and ``sender_features`` the
    least and greatest level of each feature that its software supports: so it is registered with
    whoever leads (KIP-919). Older software says nothing of them.
    ``metadata_log_id`` is of the log that the sender holds, as far as its id is committed there.
    ``asks_for_directories``: it is nothing but a question, and the sender is not to be remembered.
    """

    api = "QuorumMessages"
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
    """One committed entry of the metadata log: records that take effect together.

    ``payload`` is what ``metadata/records.py`` encodes.
    """

    offset: Offset
    epoch: int
    payload: bytes


class FetchMetadataResponse(RpcResponse):
    """Either ``entries`` from the asked offset on, or the whole state at ``snapshot_offset``.

    ``snapshot_offset`` is -1, or that of the last entry in the snapshot, which comes in pieces:
    ``snapshot_chunk`` from the asked position on; ``snapshot_next_position`` is -1 after the last.
    ``high_watermark`` is the offset of the last committed entry, -1 if there is none.
    ``metadata_log_id`` says which log that is; None from software before logs had ids.
    ``controller_id`` is who answers, ``controller_epoch`` its term, and ``is_active`` whether it
    leads. Each controller makes snapshots of its own: pieces of two of them are no state.
    ``snapshot_epoch`` is that of the last entry in the snapshot, with its first piece; else -1.
    ``snapshot_crc`` is of the whole snapshot, with each piece: a controller that found its snapshot
    damaged writes another one of the same state, which may have it in another order.
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
    """Wait up to ``max_wait_ms`` for committed entries from ``fetch_offset`` on.

    ``snapshot_offset`` and ``snapshot_position`` continue a snapshot; -1 and 0 otherwise.
    ``metadata_log_id`` is the log that the broker has followed; None if it remembers none. With
    ``applied_metadata_offset``, how far it has, any controller may answer that knows as much.
    ``applied_metadata_epoch`` is that of the entry there, None if it is not known: an entry of
    another epoch is one that was decided by controllers that had lost it (as in KIP-595, where
    fetches say ``LastFetchedEpoch``).
    """

    api = "FetchMetadata"
    Response = FetchMetadataResponse

    broker_id: WireBrokerId
    fetch_offset: Offset
    max_wait_ms: int = Field(ge=0, le=60_000)
    max_bytes: int = Field(ge=1)
    snapshot_offset: Offset = -1
    snapshot_position: int = Field(default=0, ge=0)
    metadata_log_id: WireUuid | None = None
    broker_epoch: BrokerEpoch = BrokerEpoch(-1)
    """Shows the controller's door that this is a broker, once it is registered."""
    applied_metadata_offset: Offset | None = None
    applied_metadata_epoch: int | None = None


# --- questions about the quorum -----------------------------------------------------------------


class QuorumReplica(RpcBody):
    """One copy of the metadata log, as its leader knows it.

    ``log_end_offset`` is the offset after the last entry that it holds durably; times are wall
    time. -1 means that it is not known. ``endpoints`` are ``NAME://host:port``, of voters only.
    """

    node_id: WireBrokerId
    directory_id: WireDirectoryId | None = None
    log_end_offset: int = -1
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1
    endpoints: Annotated[tuple[RepeatedText, ...], Field(max_length=MAX_ENDPOINTS)] = ()


class DescribeQuorumResponse(RpcResponse):
    """``node_id`` is who answers, ``leader_id`` -1 while nobody is known to lead;
    ``high_watermark`` is the offset after the last committed entry, -1 if it is not known.
    ``refusal`` is why the leader does not take who answers for a voter, None while it does."""

    node_id: WireBrokerId
    cluster_id: RepeatedText
    leader_id: int = -1
    leader_epoch: int = 0
    high_watermark: int = -1
    voters: tuple[QuorumReplica, ...] = ()
    observers: tuple[QuorumReplica, ...] = ()
    refusal: str | None = None


class DescribeQuorumRequest(RpcRequest):
    """How the quorum is: asked of its leader, or with ``of_any`` of any controller, which then says
    who leads and who votes, as far as it knows."""

    api = "DescribeQuorum"
    Response = DescribeQuorumResponse

    of_any: bool = False


class AddRaftVoterResponse(RpcResponse):
    """It votes, or will once that is committed."""


class AddRaftVoterRequest(OnceOnlyRequest):
    """Let a controller vote that follows the log and has caught up (KIP-853).

    ``was_checked`` says that it was found not to vote before this was asked at first.
    """

    api = "AddRaftVoter"
    Response = AddRaftVoterResponse

    voter_id: WireBrokerId
    directory_id: WireDirectoryId
    endpoints: Annotated[tuple[RepeatedText, ...], Field(max_length=MAX_ENDPOINTS)]
    ack_when_committed: bool = True
    was_checked: bool = False


class RemoveRaftVoterResponse(RpcResponse):
    """It votes no more."""


class RemoveRaftVoterRequest(OnceOnlyRequest):
    """Let a controller vote no more, whether it is there or not.

    ``was_checked`` says that it was found to vote before this was asked at first.
    """

    api = "RemoveRaftVoter"
    Response = RemoveRaftVoterResponse

    voter_id: WireBrokerId
    directory_id: WireDirectoryId
    was_checked: bool = False
