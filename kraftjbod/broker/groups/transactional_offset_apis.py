"""LOOP. TxnOffsetCommit: offsets of a group that are committed with a producer's transaction.

It works as OffsetCommit (committed_offset_apis.py) with these differences: the producer sends it,
the member's generation is checked only if given, and offsets take effect when the transaction is
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.coordinator.group_commits import Committer, GroupCommits
from kraftjbod.broker.groups.records.group_records import CommittedOffset, is_too_long
from kraftjbod.broker.replicas.pending_append import TransactionClaim
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_LOADING_SINCE: Final = 2
_ABORTABLE_SINCE: Final = 4
#: From this version on, the broker adds the partition to the transaction for the producer
#: (KIP-890).
_ADDING_SINCE: Final = 5
#: Maps codes of the transaction coordinator to codes for the producer, as in Kafka.
_TOLD: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    # Unlike Kafka: the coordinator may not know this broker's address yet.
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
Committing = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition


class TransactionalOffsetApis:
    def __init__(
        self,
        *,
        commits: GroupCommits,
        cache: MetadataCache,
        clock: Clock,
        max_metadata_chars: int,
    ) -> None:
        self._commits = commits
        self._cache = cache
        self._clock = clock
        self._max_metadata_chars = max_metadata_chars

    async def txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext
    ) -> TxnOffsetCommitResponse:
        offsets: dict[TopicPartition, CommittedOffset] = {}
        codes: list[list[ErrorCode]] = []
        for topic in request.topics:
            codes.append([])
            async for part in in_slices(topic.partitions):
                where = TopicPartition(topic.name, part.partition_index)
                code = self._check(where, part)
                if len(offsets) >= MAX_ITEMS_PER_REQUEST:
                    code = ErrorCode.INVALID_REQUEST
                codes[-1].append(code)
                if code is ErrorCode.NONE:
                    offsets[where] = self._committed(part)
        code = await self._commit(request, context, offsets) if offsets else ErrorCode.NONE
        kinds = TxnOffsetCommitResponse
        return kinds(
            topics=[
                kinds.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        kinds.TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=code if of_part is ErrorCode.NONE else of_part,
                        )
                        for part, of_part in zip(topic.partitions, of_topic, strict=True)
                    ],
                )
                for topic, of_topic in zip(request.topics, codes, strict=True)
            ]
        )

    def _check(self, where: TopicPartition, part: Committing) -> ErrorCode:
        if self._cache.state.partition_named(where) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_too_long(part.committed_metadata, self._max_metadata_chars):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _committed(self, part: Committing) -> CommittedOffset:
        # Without the topic id, as in Kafka: the request does not have it.
        return CommittedOffset(
            offset=part.committed_offset,
            leader_epoch=part.committed_leader_epoch,
            metadata=part.committed_metadata or "",
            commit_ms=self._clock.wall_ms(),
        )

    async def _commit(
        self,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        offsets: dict[TopicPartition, CommittedOffset],
    ) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        if not request.transactional_id:
            return ErrorCode.INVALID_REQUEST
        version = context.api_version
        claim = TransactionClaim(
            request.transactional_id,
            supports_epoch_bump=version >= _ADDING_SINCE,
            refusal_of=_refusal_in(version),
            is_from_coordinator=True,
        )
        try:
            code = await self._commits.commit_in_transaction(
                request.group_id,
                offsets,
                Committer(request.member_id, request.group_instance_id, request.generation_id),
                producer=(request.producer_id, request.producer_epoch),
                claim=claim,
            )
        except OperatingError as e:
            code = e.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _LOADING_SINCE:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code


def _refusal_in(version: int) -> Callable[[ErrorCode], ErrorCode]:
    """Return a function that maps a code of the transaction coordinator to the code for the
    producer.

    :param version: the version of the producer's request.
    """

    def refusal_of(code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
        return _TOLD.get(code, code)

    return refusal_of
