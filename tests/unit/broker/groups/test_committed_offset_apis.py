"""OffsetCommit, OffsetFetch and OffsetDelete, by topic name and by topic id."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicId
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.protocol.messages import (
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.unit.broker.broker_rig import TOPIC_ID, BrokerRig, partition, topic
from tests.unit.broker.groups.group_rig import (
    beat,
    commit,
    committing,
    coordinator,
    enter,
    fetched,
    lead,
)

E = ErrorCode


async def fetch_one(rig: BrokerRig, version: int, group_id: str = "g", index: int = 0) -> Any:
    """Fetch the offset of one partition in the format of the version."""
    kind = OffsetFetchRequest
    if version < 8:
        old = kind.OffsetFetchRequestTopic(name="t", partition_indexes=[index])
        answer = await rig.ask(kind(group_id=group_id, topics=[old]), version)
        return answer.topics[0].partitions[0]
    name, topic_id = ("t", bytes(16)) if version < 10 else ("", TOPIC_ID)
    wanted = kind.OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=[index])
    asked = kind.OffsetFetchRequestGroup(group_id=group_id, topics=[wanted])
    answer = await rig.ask(kind(groups=[asked]), version)
    return answer.groups[0].topics[0].partitions[0]


@pytest.mark.parametrize("version", range(2, 11))
async def test_offset_fetch_returns_committed_offset_in_all_versions(version: int) -> None:
    async with coordinator() as rig:
        request = commit(7, committed_metadata="half way")
        if version >= 10:
            request.topics[0].topic_id = TOPIC_ID
        answer = await rig.ask(request, version)
        assert answer.topics[0].partitions[0].error_code == 0
        for read_by in range(1, 11):
            part = await fetch_one(rig, read_by)
            epoch = 3 if version >= 6 and read_by >= 5 else -1
            assert (part.committed_offset, part.committed_leader_epoch) == (7, epoch)
            assert (part.metadata, part.error_code) == ("half way", 0)
            nothing = await fetch_one(rig, read_by, index=1)
            assert (nothing.committed_offset, nothing.metadata, nothing.error_code) == (-1, "", 0)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"index": 1}, E.UNKNOWN_TOPIC_OR_PARTITION),
        ({"name": "nowhere"}, E.UNKNOWN_TOPIC_OR_PARTITION),
        ({"committed_metadata": "x" * 4097}, E.OFFSET_METADATA_TOO_LARGE),
        ({"version": 10}, E.UNKNOWN_TOPIC_ID),
    ],
)
async def test_offset_commit_to_an_invalid_partition_returns_its_error_and_stores_nothing(
    more: dict[str, Any], code: ErrorCode
) -> None:
    async with coordinator() as rig:
        assert await committing(rig, 1, **more) == code
        assert await fetched(rig) == {}


async def test_offset_commit_with_overflowing_retention_expires_at_the_maximum_time() -> None:
    async with coordinator() as rig:
        request = commit(7)
        request.retention_time_ms = 2**63 - 1
        answer = await rig.ask(request, 4)
        assert answer.topics[0].partitions[0].error_code == 0
        (kept,) = rig.parts.coordinator.find("g").offsets("g").values()
        assert kept.expire_ms == 2**63 - 1


async def test_offset_commit_with_overlong_group_id_returns_invalid_request() -> None:
    async with coordinator() as rig:
        request = commit(7)
        request.group_id = "g" * 40_000
        answer = await rig.ask(request, 9)
        assert answer.topics[0].partitions[0].error_code == E.INVALID_REQUEST


@pytest.mark.parametrize(("version", "code"), [(8, 22), (9, 69)])
async def test_offset_commit_by_a_member_of_an_unknown_group_is_rejected(
    version: int, code: int
) -> None:
    async with coordinator() as rig:
        assert await committing(rig, 1, "m", 3, version=version) == code


@pytest.mark.parametrize("version", [1, 7])
async def test_offset_fetch_from_wrong_coordinator_returns_not_coordinator_by_version(
    version: int,
) -> None:
    async with coordinator() as rig:
        rig.parts.coordinator.close()
        kind = OffsetFetchRequest
        old = kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
        answer: OffsetFetchResponse = await rig.ask(kind(group_id="g", topics=[old]), version)
        if version == 1:
            assert answer.topics[0].partitions[0].error_code == E.NOT_COORDINATOR
        else:
            assert (answer.error_code, answer.topics) == (E.NOT_COORDINATOR, [])


@pytest.mark.parametrize("version", [1, 7, 9])
async def test_offset_fetch_that_cannot_be_confirmed_in_the_log_is_refused_as_not_coordinator(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java clients before 3.9 fail on COORDINATOR_NOT_AVAILABLE in this response."""
    async with coordinator(offsets_commit_timeout_ms="40") as rig:
        assert await committing(rig, 1) == 0
        await lead(rig, 1, isr=(1, 2))
        lifecycle = type(rig.parts.lifecycle)
        monkeypatch.setattr(lifecycle, "may_be_deposed", property(lambda _: True))
        kind = OffsetFetchRequest
        if version < 8:
            old = kind.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
            answer = await rig.ask(kind(group_id="g", topics=[old]), version)
            code = answer.error_code or answer.topics[0].partitions[0].error_code
        else:
            code = await fetched(rig)
        assert code == E.NOT_COORDINATOR


async def test_offsets_of_a_deleted_topic_do_not_apply_to_its_namesake() -> None:
    async with coordinator() as rig:
        assert await committing(rig, 7) == 0
        other = TopicId(b"u" * 16)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        await rig.follow(topic(topic_id=other), partition(topic_id=other))
        assert (await fetch_one(rig, 9)).committed_offset == -1
        assert await committing(rig, 1) == 0
        assert (await fetch_one(rig, 9)).committed_offset == 1


async def test_offset_delete_removes_offsets_of_unsubscribed_topics() -> None:
    def delete(group_id: str = "g") -> OffsetDeleteRequest:
        kind = OffsetDeleteRequest
        part = kind.OffsetDeleteRequestPartition(partition_index=0)
        topics = [kind.OffsetDeleteRequestTopic(name="t", partitions=[part])]
        return kind(group_id=group_id, topics=topics)

    async with coordinator() as rig:
        assert (await rig.ask(delete())).error_code == E.GROUP_ID_NOT_FOUND
        assert (await rig.ask(delete(""))).error_code == E.INVALID_GROUP_ID
        assert await committing(rig, 7) == 0
        deleted = await rig.ask(delete())
        assert (deleted.error_code, deleted.topics[0].partitions[0].error_code) == (0, 0)
        assert await fetched(rig) == {}
        member_id, generation = await enter(rig)
        assert (await rig.ask(beat(member_id, generation))).error_code == 0
        # The metadata of the member names no topics, so that the group does not subscribe to ``t``.
        assert (await rig.ask(delete())).topics[0].partitions[0].error_code == 0
        # As in Kafka, an unknown partition returns an error.
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        (part,) = (await rig.ask(delete())).topics[0].partitions
        assert part.error_code == E.UNKNOWN_TOPIC_OR_PARTITION


async def test_offset_fetch_by_id_omits_deleted_topics() -> None:
    async with coordinator() as rig:
        assert await committing(rig, 7) == 0
        asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
        (group,) = (await rig.ask(OffsetFetchRequest(groups=[asked]), 10)).groups
        assert [one.topic_id for one in group.topics] == [TOPIC_ID]
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        (group,) = (await rig.ask(OffsetFetchRequest(groups=[asked]), 10)).groups
        assert group.topics == []


async def test_offset_metadata_size_is_counted_as_kafka() -> None:
    """Kafka counts UTF-16 code units: a character outside the basic plane counts twice."""
    async with coordinator(offset_metadata_max_bytes="10") as rig:
        for text, code in (
            ("x" * 10, 0),
            ("\U0001f600" * 5, 0),
            ("\U0001f600" * 6, 12),
            ("x" * 11, 12),
        ):
            assert await committing(rig, 7, committed_metadata=text) == code, text


async def test_offset_commit_by_a_member_of_an_empty_group_is_rejected() -> None:
    async with coordinator() as rig:
        assert await committing(rig, 7, "m", 3) == E.GROUP_ID_NOT_FOUND
        assert await committing(rig, 7) == 0
        assert await committing(rig, 7, "m", 3) == E.UNKNOWN_MEMBER_ID
