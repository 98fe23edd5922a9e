"""TxnOffsetCommit: validation of the committer, and when the offsets apply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kraftjbod.broker.groups.classic.classic_group import ClassicGroup
from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.broker.internal.transaction_verifier import TransactionVerifier
from kraftjbod.broker.transactions.transaction_records import TransactionState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.unit.broker.broker_rig import TP, BrokerRig, partition
from tests.unit.broker.gates import until
from tests.unit.broker.groups import group_rig
from tests.unit.broker.groups.group_rig import committing, enter, fetched
from tests.unit.broker.transactions import transaction_rig
from tests.unit.broker.transactions.transaction_rig import ID, end, init

E = ErrorCode
NEWEST = 5


@contextlib.asynccontextmanager
async def both(**overrides: Any) -> AsyncIterator[BrokerRig]:
    """A broker that coordinates groups and transactions."""
    async with group_rig.coordinator(**overrides) as rig:
        await transaction_rig.lead(rig, 0)
        await transaction_rig.loaded(rig)
        yield rig


async def committing_with(
    rig: BrokerRig, producer: tuple[int, int], offset: int, version: int = NEWEST, **more: Any
) -> int:
    kind = TxnOffsetCommitRequest
    part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = kind(
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[kind.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
        **{"transactional_id": ID, "group_id": "g", "generation_id": -1, **more},
    )
    answer = await rig.ask(request, version)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def stable(rig: BrokerRig) -> int:
    """Return the committed offset with ``require_stable``, or the negative error code."""
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    request = OffsetFetchRequest(groups=[asked], require_stable=True)
    ((topic,),) = [group.topics for group in (await rig.ask(request, 9)).groups]
    (part,) = topic.partitions
    return -part.error_code if part.error_code else part.committed_offset


@pytest.mark.parametrize("commits", [True, False])
async def test_transactional_offsets_apply_when_the_transaction_commits(commits: bool) -> None:
    async with both() as rig:
        producer = await init(rig)
        assert await committing(rig, 1) == 0
        assert await committing_with(rig, producer, 5) == 0
        assert await fetched(rig) == {("t", 0): 1}
        assert await stable(rig) == -E.UNSTABLE_OFFSET_COMMIT
        # The next coordinator of the group returns the same error.
        await group_rig.lead(rig, 1, leader=2)
        await group_rig.lead(rig, 2)
        await group_rig.loaded(rig)
        assert await stable(rig) == -E.UNSTABLE_OFFSET_COMMIT
        ended = await end(rig, producer, commits=commits, version=NEWEST)
        assert (ended.error_code, ended.producer_epoch) == (0, 1)
        await until(lambda: not rig.parts.coordinator.find("g").pending.groups)
        held = 5 if commits else 1
        assert await stable(rig) == held and await fetched(rig) == {("t", 0): held}
        await group_rig.lead(rig, 3, leader=2)
        await group_rig.lead(rig, 4)
        await group_rig.loaded(rig)
        assert await stable(rig) == held


async def test_txn_offset_commit_by_a_fenced_producer_is_rejected() -> None:
    async with both() as rig:
        old = await init(rig)
        assert await committing_with(rig, old, 5) == 0
        assert (await end(rig, old, version=NEWEST)).error_code == 0
        await until(lambda: not rig.parts.coordinator.find("g").pending.groups)
        for version, code in ((NEWEST, E.INVALID_PRODUCER_EPOCH), (2, E.INVALID_PRODUCER_EPOCH)):
            assert await committing_with(rig, old, 6, version) == code
        new = await init(rig)
        # Since version 5 the commit adds the partition itself; older versions need AddOffsetsToTxn.
        assert await committing_with(rig, new, 7, version=4) == E.TRANSACTION_ABORTABLE
        assert await committing_with(rig, new, 7, version=3) == E.INVALID_TXN_STATE
        assert await stable(rig) == 5


async def test_txn_offset_commit_by_a_former_member_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same holds if the member leaves while the transaction coordinator is asked."""
    left: list[ClassicGroup] = []
    verify = TransactionVerifier.verify

    def leaving_meanwhile(verifier: TransactionVerifier, *about: Any) -> Any:
        for group in left:
            group.generation += 1
        return verify(verifier, *about)

    monkeypatch.setattr(TransactionVerifier, "verify", leaving_meanwhile)
    async with both() as rig:
        producer = await init(rig)
        member_id, generation = await enter(rig)
        mine = {"member_id": member_id, "generation_id": generation}
        for wrong in ({**mine, "generation_id": 9}, {**mine, "member_id": "m"}):
            code = await committing_with(rig, producer, 5, **wrong)
            assert code in (E.ILLEGAL_GENERATION, E.UNKNOWN_MEMBER_ID)
        group = rig.parts.coordinator.find("g").groups["g"]
        left.append(group)
        assert await committing_with(rig, producer, 5, **mine) == E.ILLEGAL_GENERATION
        assert group.generation > generation
        assert not rig.parts.coordinator.find("g").pending.groups
        left.clear()
        mine["generation_id"] = group.generation
        assert await committing_with(rig, producer, 5, **mine) == 0


async def test_txn_offset_commit_beyond_producer_limit_is_retriable() -> None:
    """An ended transaction frees its place immediately, regardless of the last write."""
    async with both(max_producer_ids_per_partition="1") as rig:
        first, other = await init(rig), {"transactional_id": "other"}
        second = await init(rig, **other)
        assert await committing_with(rig, first, 5) == 0
        for version, code in (
            (NEWEST, E.COORDINATOR_LOAD_IN_PROGRESS),
            (1, E.COORDINATOR_NOT_AVAILABLE),
        ):
            assert await committing_with(rig, second, 6, version, **other) == code
        assert (await end(rig, first, version=NEWEST)).error_code == 0
        await until(lambda: not rig.parts.coordinator.find("g").pending.groups)
        assert await committing_with(rig, second, 6, **other) == 0


async def test_txn_offset_commit_of_new_group_beyond_group_limit_is_refused() -> None:
    async with both(group_max_per_partition="2") as rig:
        producer, member = await init(rig), {"generation_id": 1, "member_id": "m"}
        commits = (committing_with(rig, producer, 5, group_id=name) for name in "abc")
        assert await asyncio.gather(*commits) == [0, 0, E.GROUP_MAX_SIZE_REACHED]
        assert await committing_with(rig, producer, 6, group_id="a") == 0
        code = await committing_with(rig, producer, 6, group_id="c", **member)
        assert code == E.ILLEGAL_GENERATION


async def test_txn_offset_commit_with_invalid_fields_is_rejected() -> None:
    async with both() as rig:
        producer = await init(rig)
        assert await committing_with(rig, producer, 5, generation_id=3) == E.ILLEGAL_GENERATION
        assert await committing_with(rig, producer, 5, group_id="") == E.INVALID_GROUP_ID
        assert await committing_with(rig, producer, 5, transactional_id="") == E.INVALID_REQUEST
        kind = TxnOffsetCommitRequest
        parts = [
            kind.TxnOffsetCommitRequestPartition(partition_index=9),
            kind.TxnOffsetCommitRequestPartition(committed_metadata="x" * 5_000),
        ]
        topics = [kind.TxnOffsetCommitRequestTopic(name="t", partitions=parts)]
        request = kind(transactional_id=ID, group_id="g", topics=topics)
        answer = await rig.ask(request, NEWEST)
        assert [part.error_code for part in answer.topics[0].partitions] == [
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.OFFSET_METADATA_TOO_LARGE,
        ]


def _end_of(producer: tuple[int, int]) -> WriteTxnMarkersRequest:
    """The commit marker of a transaction with records in ``t-0`` and offsets of the group."""
    kind = WriteTxnMarkersRequest
    where = [
        kind.WritableTxnMarkerTopic(name=name, partition_indexes=[0])
        for name in (OFFSETS_TOPIC, "t")
    ]
    marker = kind.WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1] + 1,
        transaction_result=True,
        topics=where,
        coordinator_epoch=0,
        transaction_version=2,
    )
    return kind(markers=[marker])


@contextlib.asynccontextmanager
async def slow_partition() -> AsyncIterator[tuple[BrokerRig, tuple[int, int]]]:
    """A rig as of :func:`both`, and a producer; only ``t-0`` waits for a follower."""
    async with both() as rig:
        await rig.follow(partition(epoch=1, replicas=(1, 2)))
        yield rig, await init(rig)


async def test_marker_of_a_group_does_not_wait_for_a_slow_partition_of_the_request() -> None:
    async with slow_partition() as (rig, producer):
        assert await committing_with(rig, producer, 5) == 0
        late = asyncio.create_task(rig.ask(_end_of(producer), 2))
        await until(lambda: not rig.parts.coordinator.find("g").pending.groups)
        assert not late.done() and await stable(rig) == 5
        await rig.follow(partition(epoch=2, replicas=(1, 2), isr=(1,)))
        (answer,) = (await late).markers
        codes = [part.error_code for one in answer.topics for part in one.partitions]
        assert codes == [E.NONE, E.NOT_LEADER_OR_FOLLOWER], (
            "the leader epoch of the slow partition has ended"
        )


async def test_late_marker_answer_keeps_offsets_of_next_transaction() -> None:
    """The coordinator repeats a marker, and the next transaction starts before the response."""
    async with slow_partition() as (rig, producer):
        assert await committing_with(rig, producer, 5) == 0
        late = asyncio.create_task(rig.ask(_end_of(producer), 2))
        await until(lambda: rig.parts.hosted.produces.is_waited_for(TP))
        ended = await end(rig, producer, version=NEWEST)
        await until(lambda: not rig.parts.coordinator.find("g").pending.groups)
        await until(lambda: transaction_rig.state_of(rig) is TransactionState.COMPLETE_COMMIT)
        assert await committing_with(rig, (ended.producer_id, ended.producer_epoch), 9) == 0
        await rig.follow(partition(epoch=2, replicas=(1, 2), isr=(1,)))
        await late
        assert await stable(rig) == -E.UNSTABLE_OFFSET_COMMIT
        assert await fetched(rig) == {("t", 0): 5}
