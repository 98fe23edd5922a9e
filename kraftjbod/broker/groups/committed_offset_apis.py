"""LOOP. OffsetCommit, OffsetFetch and OffsetDelete: committed offsets of groups.

* Requests name topics, or give topic ids since version 10. Only topics in the metadata can be
  committed for. An error of one partition is reported for that partition.
* An error of the group is reported for each remaining partition, or for the group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.group_commits import Committer, GroupCommits
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.broker.groups.records.group_records import (
    NO_EXPIRY,
    CommittedOffset,
    is_too_long,
)
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID, TopicId, TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

_BY_ID_SINCE: Final = 10
_GROUPS_SINCE: Final = 8
_ERROR_OF_GROUP_SINCE: Final = 2
_GROUP_NOT_FOUND_SINCE: Final = 9
_NO_OFFSET: Final = -1
#: No member id and no epoch.
_NOBODY: Final[tuple[str | None, int]] = (None, -1)
Committing = OffsetCommitRequest.OffsetCommitRequestPartition
FetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopics
FetchedPartition = OffsetFetchResponse.OffsetFetchResponsePartitions
FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup


class _Named(NamedTuple):
    """A topic of a request; ``name`` is None if its id is unknown."""

    name: str | None
    topic_id: bytes


class CommittedOffsetApis:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        commits: GroupCommits,
        cache: MetadataCache,
        clock: Clock,
        max_metadata_chars: int,
    ) -> None:
        self._coordinator = coordinator
        self._commits = commits
        self._cache = cache
        self._clock = clock
        self._max_metadata_chars = max_metadata_chars

    # --- OffsetCommit ----------------------------------------------------------------------------

    async def offset_commit(
        self, request: OffsetCommitRequest, context: RequestContext
    ) -> OffsetCommitResponse:
        named = [self._named(topic.name, topic.topic_id, context) for topic in request.topics]
        offsets: dict[TopicPartition, CommittedOffset] = {}
        codes: list[list[ErrorCode]] = []
        for topic, (name, topic_id) in zip(request.topics, named, strict=True):
            codes.append([])
            async for part in in_slices(topic.partitions):
                code = self._check(name, part, context)
                if len(offsets) >= MAX_ITEMS_PER_REQUEST:
                    code = ErrorCode.INVALID_REQUEST
                codes[-1].append(code)
                if code is ErrorCode.NONE:
                    where = TopicPartition(name or "", part.partition_index)
                    offsets[where] = self._committed(part, topic_id, request.retention_time_ms)
        # Without valid offsets the group is not checked, as in Kafka.
        code = await self._commit(request, context, offsets) if offsets else ErrorCode.NONE
        kinds = OffsetCommitResponse
        return kinds(
            topics=[
                kinds.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        kinds.OffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=code if of_part is ErrorCode.NONE else of_part,
                        )
                        for part, of_part in zip(topic.partitions, of_topic, strict=True)
                    ],
                )
                for topic, of_topic in zip(request.topics, codes, strict=True)
            ]
        )

    def _named(self, name: str, topic_id: bytes, context: RequestContext) -> _Named:
        if context.api_version < _BY_ID_SINCE:
            topic = self._cache.state.topic(name)
            return _Named(name, ZERO_UUID if topic is None else topic.topic_id)
        topic = self._cache.state.topics.get(TopicId(topic_id))
        return _Named(None if topic is None else topic.name, topic_id)

    def _check(self, name: str | None, part: Committing, context: RequestContext) -> ErrorCode:
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        where = TopicPartition(name, part.partition_index)
        if self._cache.state.partition_named(where) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_too_long(part.committed_metadata, self._max_metadata_chars):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    def _committed(
        self, part: Committing, topic_id: bytes, retention_time_ms: int
    ) -> CommittedOffset:
        now_ms, expire_ms = self._clock.wall_ms(), NO_EXPIRY
        if retention_time_ms >= 0:
            expire_ms = min(now_ms + retention_time_ms, MAX_LONG)
        return CommittedOffset(
            offset=part.committed_offset,
            leader_epoch=part.committed_leader_epoch,
            metadata=part.committed_metadata or "",
            commit_ms=now_ms,
            expire_ms=expire_ms,
            topic_id=topic_id,
        )

    async def _commit(
        self,
        request: OffsetCommitRequest,
        context: RequestContext,
        offsets: dict[TopicPartition, CommittedOffset],
    ) -> ErrorCode:
        knows_absence = context.api_version >= _GROUP_NOT_FOUND_SINCE
        absent = ErrorCode.GROUP_ID_NOT_FOUND if knows_absence else ErrorCode.ILLEGAL_GENERATION
        try:
            committer = Committer(
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                knows_epochs=context.api_version >= _GROUP_NOT_FOUND_SINCE,
            )
            return await self._commits.commit(
                request.group_id, offsets, committer, absent_code=absent
            )
        except OperatingError as e:
            return e.code

    # --- OffsetFetch -----------------------------------------------------------------------------

    async def offset_fetch(
        self, request: OffsetFetchRequest, context: RequestContext
    ) -> OffsetFetchResponse:
        if context.api_version >= _GROUPS_SINCE:
            groups = []
            for asked in request.groups:
                wanted = None
                if asked.topics is not None:
                    wanted = [
                        (self._named(topic.name, topic.topic_id, context), topic.partition_indexes)
                        for topic in asked.topics
                    ]
                member = (asked.member_id, asked.member_epoch)
                groups.append(
                    await self._fetch(
                        asked.group_id,
                        wanted,
                        member,
                        stable=request.require_stable,
                        by_id=context.api_version >= _BY_ID_SINCE,
                    )
                )
            return OffsetFetchResponse(groups=groups)
        wanted = None
        if request.topics is not None:
            wanted = [
                (self._named(topic.name, ZERO_UUID, context), topic.partition_indexes)
                for topic in request.topics
            ]
        group = await self._fetch(request.group_id, wanted, stable=request.require_stable)
        return _of_one_group(group, wanted, context)

    async def _fetch(
        self,
        group_id: str,
        wanted: Sequence[tuple[_Named, Sequence[int]]] | None,
        member: tuple[str | None, int] = _NOBODY,
        *,
        stable: bool,
        by_id: bool = False,
    ) -> FetchedGroup:
        """Return the committed offsets of a group, or the error code of the group.

        :param wanted: topics and partitions; None for all committed offsets.
        :param member: the sender's member id and epoch. A consumer group checks them, except for a
            sender without both.
        :param stable: report UNSTABLE_OFFSET_COMMIT for offsets that an open transaction may
            change.
        :param by_id: whether the response names topics by id. If ``wanted`` is None, topics without
            an id are omitted.
        """
        try:
            groups = await self._coordinator.find_current(group_id)
        except OperatingError as e:
            return FetchedGroup(group_id=group_id, error_code=_code_of_fetch(e.code))
        consumer_group = groups.consumer_groups.get(group_id)
        if consumer_group is not None:
            code = consumer_group.check_fetch(*member)
            if code is not ErrorCode.NONE:
                return FetchedGroup(group_id=group_id, error_code=code)
        if wanted is None:
            everything = self._everything(groups, group_id, stable=stable)
            wanted = [one for one in everything if not (by_id and one[0].topic_id == ZERO_UUID)]
        committed = groups.offsets(group_id)
        pending = groups.pending
        topics = []
        for (name, topic_id), indexes in wanted:
            parts = [
                _unknown(index, ErrorCode.UNKNOWN_TOPIC_ID)
                if name is None
                else _unknown(index, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if stable and pending.is_open(group_id, TopicPartition(name, index))
                else _fetched(index, committed.get(TopicPartition(name, index)), topic_id)
                async for index in in_slices(indexes)
            ]
            topics.append(FetchedTopic(name=name or "", topic_id=topic_id, partitions=parts))
        return FetchedGroup(group_id=group_id, topics=topics)

    def _everything(
        self, groups: GroupPartition, group_id: str, *, stable: bool
    ) -> Iterator[tuple[_Named, Sequence[int]]]:
        by_topic: dict[str, list[int]] = {}
        pending = dict.fromkeys(groups.pending.of_group(group_id) if stable else ())
        for name, index in {**groups.offsets(group_id), **pending}:
            by_topic.setdefault(name, []).append(index)
        for name, indexes in by_topic.items():
            topic = self._cache.state.topic(name)
            yield _Named(name, ZERO_UUID if topic is None else topic.topic_id), sorted(indexes)

    # --- OffsetDelete ----------------------------------------------------------------------------

    async def offset_delete(
        self, request: OffsetDeleteRequest, _context: RequestContext
    ) -> OffsetDeleteResponse:
        group_id = request.group_id
        try:
            groups = self._coordinator.find(group_id)
            state = groups.state_of(group_id)
            if not group_id or state is GroupState.DEAD:
                code = ErrorCode.GROUP_ID_NOT_FOUND if group_id else ErrorCode.INVALID_GROUP_ID
                return OffsetDeleteResponse(error_code=code)
            subscribed = groups.subscribed(group_id)
            if subscribed is None:
                return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP)
            codes = {
                one: self._check_going(one, subscribed)
                async for one in in_slices(
                    TopicPartition(topic.name, part.partition_index)
                    for topic in request.topics
                    for part in topic.partitions
                )
            }
            going = [one for one, of_one in codes.items() if of_one is ErrorCode.NONE]
            code = await self._coordinator.delete_offsets(group_id, going)
        except OperatingError as e:
            return OffsetDeleteResponse(error_code=e.code)
        kinds = OffsetDeleteResponse
        return kinds(
            error_code=code,
            topics=[
                kinds.OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        kinds.OffsetDeleteResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes[TopicPartition(topic.name, part.partition_index)],
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )

    def _check_going(self, where: TopicPartition, subscribed: Collection[str]) -> ErrorCode:
        if self._cache.state.partition_named(where) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if where.topic in subscribed:
            return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        return ErrorCode.NONE


def _code_of_fetch(code: ErrorCode) -> ErrorCode:
    """Return the error code of an OffsetFetch response if finding the coordinator failed with
    ``code``.

    Java clients before 3.9 fail on COORDINATOR_NOT_AVAILABLE in this response. NOT_COORDINATOR
    makes every client look the coordinator up and retry.
    """
    is_unavailable = code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_COORDINATOR if is_unavailable else code


def _unknown(index: int, code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(
        partition_index=index,
        committed_offset=_NO_OFFSET,
        committed_leader_epoch=_NO_OFFSET,
        metadata="",
        error_code=code,
    )


def _fetched(index: int, committed: CommittedOffset | None, topic_id: bytes) -> FetchedPartition:
    """Return the committed offset of a partition.

    The offset is -1 if none is committed, or if the commit was for an earlier topic of that name.
    """
    if committed is None or _is_of_another(committed, topic_id):
        return _unknown(index, ErrorCode.NONE)
    return FetchedPartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _is_of_another(committed: CommittedOffset, topic_id: bytes) -> bool:
    return committed.topic_id != topic_id and ZERO_UUID not in (committed.topic_id, topic_id)


def _of_one_group(
    group: FetchedGroup,
    wanted: Sequence[tuple[_Named, Sequence[int]]] | None,
    context: RequestContext,
) -> OffsetFetchResponse:
    """Convert to a response before version 8, which has one group.

    Versions before 2 have no error code of the group: it is reported for each partition.
    """
    kinds = OffsetFetchResponse
    topics = group.topics
    if group.error_code and context.api_version < _ERROR_OF_GROUP_SINCE:
        code = ErrorCode(group.error_code)
        topics = [
            FetchedTopic(
                name=named.name or "", partitions=[_unknown(index, code) for index in indexes]
            )
            for named, indexes in wanted or ()
        ]
    return kinds(
        error_code=group.error_code,
        topics=[
            kinds.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    kinds.OffsetFetchResponsePartition(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
