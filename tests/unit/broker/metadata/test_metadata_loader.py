"""``MetadataLoader`` replays the metadata log, by entries and by snapshots."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.metadata.metadata_loader import difference_steps
from kraftjbod.broker.metadata.metadata_publisher import PreparedSecurity
from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.client_quota import client_entity
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, TopicId, Uuid
from kraftjbod.core.loop.work_slices import WorkSlices
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.metadata.record_codec import encode_entry
from kraftjbod.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Record,
    RemoveTopicRecord,
    ResourceType,
)
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    MetadataEntry,
)
from kraftjbod.storage.identity.applied_metadata import AppliedMetadata, read_applied_metadata
from tests.unit.broker.broker_rig import TOPIC_ID, TP, brokers, partition, topic
from tests.work_count import count_bytecodes

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

CONFIG = ConfigRecord(
    resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value="5"
)


def entry(offset: int, *records: Record) -> MetadataEntry:
    payload = encode_entry(records, LATEST_METADATA_VERSION)
    return MetadataEntry(offset=offset, epoch=1, payload=payload)


async def test_metadata_loader_replays_entries_in_order_and_reports_the_applied_offset() -> None:

    entries = [entry(10, topic(), partition()), entry(11, CONFIG)]

    reported = set()

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        reported.add((request.applied_metadata_offset, request.applied_metadata_epoch))
        due = entries if request.fetch_offset <= 11 else []
        return FetchMetadataResponse(high_watermark=11, entries=tuple(due))

    async with brokers(answer=answer) as (rig,):
        rig.tasks.start(rig.parts.loader.run_loader(), "loader")
        await rig.parts.loader.caught_up(11)
        await rig.parts.publisher.disk_work_done()
        while len(reported) < 2:
            await asyncio.sleep(0)
        assert reported == {(-1, None), (11, 1)}, "the controller learns the applied offset"
        assert rig.parts.cache.version == 11
        assert rig.logs.get(TP) is not None


def _entries_of_many_partitions() -> tuple[MetadataEntry, ...]:
    """A topic in entries of 300 partitions that other brokers have."""
    parts = (range(i, i + 300) for i in range(0, 1_500, 300))
    creation = entry(10, topic())
    return creation, *(
        entry(11 + i, *(partition(index, replicas=(2, 3), leader=2) for index in part))
        for i, part in enumerate(parts)
    )


async def test_metadata_loader_publishes_many_partitions_in_parts_that_end_at_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = _entries_of_many_partitions()

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        due = tuple(one for one in entries if one.offset >= request.fetch_offset)
        return FetchMetadataResponse(high_watermark=15, entries=due)

    async with brokers(answer=answer) as (rig,):
        loader, published = rig.parts.loader, list[tuple[int, int]]()
        publish = rig.parts.publisher.publish

        def note(delta: MetadataDelta) -> None:
            if delta.partitions:
                published.append((rig.parts.cache.version, len(delta.partitions)))
            publish(delta)

        monkeypatch.setattr(rig.parts.publisher, "publish", note)
        rig.tasks.start(loader.run_loader(), "loader")
        seen = set()
        while rig.parts.cache.version < 15:
            await asyncio.sleep(0)
            seen.add(rig.parts.cache.version)
        assert published == [(12, 600), (14, 600), (15, 300)]
        assert {12, 14} < seen, "other tasks run in between"


async def test_metadata_loader_applies_no_later_part_after_the_session_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = _entries_of_many_partitions()

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        due = tuple(one for one in entries if one.offset >= request.fetch_offset)
        return FetchMetadataResponse(high_watermark=15, entries=due)

    async with brokers(answer=answer) as (rig,):
        loader, cache = rig.parts.loader, rig.parts.cache
        with monkeypatch.context() as patched, capture_logs() as events:
            patched.setattr(
                BrokerLifecycleManager, "is_session_over", property(lambda _: cache.version >= 12)
            )
            rig.tasks.start(loader.run_loader(), "loader")
            while "metadata_fetch_failed" not in {e["event"] for e in events}:
                await asyncio.sleep(0)
            assert cache.version == 12
        await loader.caught_up(15)
        assert len(cache.state.topics[TOPIC_ID].partitions) == 1_500


async def test_metadata_loader_unreadable_entry_publishes_the_changes_before_it() -> None:
    """The state contains these changes and no later response repeats them."""
    damaged = MetadataEntry(offset=11, epoch=1, payload=b"no records")
    entries = (entry(10, topic(), partition()), damaged)

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        due = tuple(one for one in entries if one.offset >= request.fetch_offset)
        return FetchMetadataResponse(high_watermark=11, entries=due)

    async with brokers(answer=answer) as (rig,):
        with capture_logs() as logged:
            loading = rig.tasks.start(rig.parts.loader.run_loader(), "loader")
            while "metadata_fetch_failed" not in {line["event"] for line in logged}:
                await asyncio.sleep(0)
            loading.cancel()
        await rig.parts.publisher.disk_work_done()
        assert rig.parts.cache.version == 10
        assert rig.logs.get(TP) is not None


async def test_metadata_loader_skips_entries_that_it_has_already_applied() -> None:
    """A response begins before the requested offset. The skipped entry is replayed only once: it
    would create a deleted topic again."""
    entries = [entry(10, topic(), partition()), entry(11, RemoveTopicRecord(topic_id=TOPIC_ID))]
    entries += [entry(10, topic(), partition()), entry(12, CONFIG)]

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        due = entries[2:] if request.fetch_offset == 12 else entries[:2]
        due = due if request.fetch_offset <= 12 else []
        return FetchMetadataResponse(high_watermark=12, entries=tuple(due))

    async with brokers(answer=answer) as (rig,):
        rig.tasks.start(rig.parts.loader.run_loader(), "loader")
        await rig.parts.loader.caught_up(12)
        await rig.parts.publisher.disk_work_done()
        assert not rig.parts.cache.state.topics
        assert rig.logs.get(TP) is None


async def test_metadata_loader_snapshot_in_chunks_publishes_the_difference() -> None:
    whole = encode_entry([topic(), partition(), CONFIG], LATEST_METADATA_VERSION)
    reported: list[tuple[int | None, int | None]] = []

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        if request.fetch_offset > 50:
            reported.append((request.applied_metadata_offset, request.applied_metadata_epoch))
            return FetchMetadataResponse(high_watermark=50)
        at = request.snapshot_position
        following = at + 10 if at + 10 < len(whole) else -1
        return FetchMetadataResponse(
            high_watermark=50,
            snapshot_offset=50,
            snapshot_epoch=-1 if at else 3,
            snapshot_chunk=whole[at : at + 10],
            snapshot_next_position=following,
        )

    async with brokers(answer=answer) as (rig,):
        await rig.follow(topic("old", TopicId(b"o" * 16)))
        rig.tasks.start(rig.parts.loader.run_loader(), "loader")
        await rig.parts.loader.caught_up(50)
        await rig.parts.publisher.disk_work_done()
        while not reported:
            await asyncio.sleep(0)
        assert reported[0] == (50, 3)
        assert list(rig.parts.cache.state.topic_ids) == ["t"]
        assert rig.logs.get(TP) is not None


@pytest.mark.parametrize("controllers", [2, 1])
async def test_snapshot_pieces_of_two_files_with_same_end_are_not_combined(
    controllers: int,
) -> None:
    """Controllers encode the state in different orders, and rewrite a damaged file."""
    records = [topic(), partition(), CONFIG, topic("u", TopicId(b"u" * 16))]
    wholes = {
        1: encode_entry(records, LATEST_METADATA_VERSION),
        2: encode_entry([records[3], *records[:3]], LATEST_METADATA_VERSION),
    }
    half = len(wholes[1]) // 2
    asked = 0

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        nonlocal asked
        asked += 1
        if request.fetch_offset > 50:
            return FetchMetadataResponse(high_watermark=50)
        at, file = request.snapshot_position, 1 if asked == 1 else 2
        return FetchMetadataResponse(
            high_watermark=50,
            controller_id=BrokerId(min(file, controllers)),
            controller_epoch=7,
            snapshot_offset=50,
            snapshot_crc=file,
            snapshot_chunk=wholes[file][at:] if at else wholes[file][:half],
            snapshot_next_position=-1 if at else half,
        )

    async with brokers(answer=answer) as (rig,):
        loading = asyncio.create_task(rig.parts.loader.run_loader())
        await rig.parts.loader.caught_up(50)
        loading.cancel()
        assert asked >= 4, "both chunks of the second snapshot were fetched"
        assert sorted(rig.parts.cache.state.topic_ids) == ["t", "u"]


async def test_metadata_loader_failed_poll_is_logged_and_retried() -> None:
    fails = [True]

    def answer(request: RpcRequest) -> RpcResponse:
        if fails:
            fails.clear()
            raise OperatingError("no", code=ErrorCode.INVALID_REQUEST)
        return FetchMetadataResponse(high_watermark=7, entries=(entry(7, topic()),))

    async with brokers(answer=answer) as (rig,):
        with capture_logs() as logged:
            loading = rig.tasks.start(rig.parts.loader.run_loader(), "loader")
            await rig.parts.loader.caught_up(7)
            loading.cancel()
            await asyncio.sleep(0)
        events = [line["event"] for line in logged]
        assert events.index("metadata_fetch_failed") < events.index("metadata_fetch_resumed")


def test_difference_of_states_equals_the_replayed_delta() -> None:
    before, after = MetadataState(), MetadataState()
    gone = TopicId(b"g" * 16)
    first = [topic(), partition(), topic("gone", gone), partition(topic_id=gone)]
    before.replay(first, offset=1, epoch=1, delta=MetadataDelta())
    after.replay(first, offset=1, epoch=1, delta=MetadataDelta())
    noted = MetadataDelta()
    then = [
        RemoveTopicRecord(topic_id=gone),
        partition(epoch=1),
        partition(1),
        CONFIG,
        FeatureLevelRecord(name="metadata.version", feature_level=17),
    ]
    after.replay(then, offset=2, epoch=1, delta=noted)
    found = MetadataDelta()
    for _ in difference_steps(before, after, found):
        pass
    assert found == noted
    assert TOPIC_ID not in found.created_topics


def test_difference_takes_steps_that_do_not_grow_with_the_states() -> None:
    """The steps run in slices, so that a snapshot does not hold the event loop."""
    longest = []
    for size in (20, 200, 2_000):
        before, after = MetadataState(), MetadataState()
        for state, number in ((before, 1), (after, 2)):
            records = [*many_of_each_kind(size, number), topic(f"t{number}", topic_id(number))]
            state.replay(records, offset=1, epoch=1, delta=MetadataDelta())
        delta = MetadataDelta()
        steps = difference_steps(before, after, delta)
        costs = [count_bytecodes(partial(next, steps, None)) for _ in range(9 * size)]
        assert next(steps, "end") == "end"
        assert len(delta.client_quotas) == len(delta.added_acls) == size
        assert len(delta.removed_acls) == len(delta.partitions) == size
        longest.append(max(costs))
    assert max(longest) <= longest[0] + 50, longest


def many_of_each_kind(size: int, number: int) -> list[Record]:
    """Return a topic of ``size`` partitions, and as many quotas and access control lists.
    ``number`` selects other values."""
    own = TopicId(bytes(15) + b"t")
    return [
        topic("many", own),
        *(partition(index, topic_id=own, epoch=number) for index in range(size)),
        *(
            ClientQuotaRecord(
                entity=(("user", f"u{one}"),), key="producer_byte_rate", value=float(number)
            )
            for one in range(size)
        ),
        *(
            AccessControlEntryRecord(
                acl_id=Uuid(bytes([number]) + one.to_bytes(15)), binding=binding(f"t{one}")
            )
            for one in range(size)
        ),
    ]


def topic_id(number: int) -> TopicId:
    return TopicId(bytes([number]) * 16)


def binding(name: str) -> AclBinding:
    return AclBinding(
        AclResourceType.TOPIC,
        name,
        AclPatternType.LITERAL,
        "User:a",
        "*",
        AclOperation.READ,
        AclPermission.ALLOW,
    )


async def test_snapshot_with_many_quotas_and_acls_is_applied_in_slices_and_becomes_visible_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size, client = 300, client_entity("u0", "app")
    whole = encode_entry(many_of_each_kind(size, 1), LATEST_METADATA_VERSION)

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        if request.fetch_offset > 50:
            return FetchMetadataResponse(high_watermark=50)
        return FetchMetadataResponse(
            high_watermark=50, snapshot_offset=50, snapshot_epoch=3, snapshot_chunk=whole
        )

    async with brokers(answer=answer, authorizer_class_name=STANDARD_AUTHORIZER) as (rig,):
        slices = WorkSlices(slice_ms=0)
        monkeypatch.setattr(WorkSlices, "of_loop", lambda: slices)
        rates, authorizer = rig.wiring.cluster.client_rates, rig.wiring.cluster.authorizer
        assert authorizer is not None
        loading = rig.tasks.start(rig.parts.loader.run_loader(), "loader")
        iterations, seen = 0, set()
        while rig.parts.cache.version < 50 or iterations < 10 * size:
            await asyncio.sleep(0)
            iterations += 1
            question = ("User:a", "::1", AclOperation.READ, AclResourceType.TOPIC, "t7")
            is_new = rig.parts.cache.version == 50
            seen.add(is_new)
            assert rates.is_set("producer_byte_rate") is is_new
            assert (rates.burst("producer_byte_rate", client) is not None) is is_new
            assert authorizer.decide(*question).is_allowed is is_new
            if not is_new:
                waited = iterations
        loading.cancel()
        assert seen == {False, True}
        # Partitions, and quotas and access control lists twice: compared and indexed.
        assert waited >= 5 * size


async def test_snapshot_is_not_applied_if_the_session_ends_during_its_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = encode_entry(many_of_each_kind(20, 1), LATEST_METADATA_VERSION)
    ended: list[int] = []

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        return FetchMetadataResponse(
            high_watermark=50, snapshot_offset=50, snapshot_epoch=3, snapshot_chunk=whole
        )

    async with brokers(answer=answer) as (rig,):
        prepare = rig.parts.publisher.prepare_security

        async def end_session(state: MetadataState) -> PreparedSecurity:
            monkeypatch.setattr(BrokerLifecycleManager, "is_session_over", True)
            ended.append(state.offset)
            return await prepare(state)

        monkeypatch.setattr(rig.parts.publisher, "prepare_security", end_session)
        loading = rig.tasks.start(rig.parts.loader.run_loader(), "loader")
        while not ended:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        loading.cancel()
        assert rig.parts.cache.version < 50 and "many" not in rig.parts.cache.state.topic_ids


async def test_metadata_loader_refuses_another_log_and_continues_with_its_own() -> None:
    """A controller is reformatted while the broker runs, and its log grows beyond the known
    offset."""
    ours, other = Uuid(b"l" * 16), Uuid(b"o" * 16)
    logs: dict[Uuid, list[MetadataEntry]] = {
        ours: [entry(10, topic(), partition())],
        other: [entry(n, topic("x", TopicId(b"x" * 16))) for n in range(11, 13)],
    }
    present = ours

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        due = [e for e in logs[present] if e.offset >= request.fetch_offset]
        last = logs[present][-1].offset
        return FetchMetadataResponse(
            high_watermark=last, entries=tuple(due), metadata_log_id=present
        )

    async with brokers(answer=answer) as (rig,):
        loader = rig.parts.loader
        rig.tasks.start(loader.run_loader(), "loader")
        await loader.caught_up(10)
        await rig.parts.publisher.disk_work_done()
        found = read_applied_metadata(rig.dirs[0].vfs, rig.dirs[0].path)
        assert found == AppliedMetadata(metadata_log_id=ours, offset=10, epoch=1), (
            "written before the replica was created"
        )
        with capture_logs() as events:
            present = other
            while loader.refusal is None:
                await asyncio.sleep(0.01)
        assert [e["event"] for e in events].count("metadata_refused") == 1
        assert str(other) in loader.refusal
        assert list(rig.parts.cache.state.topic_ids) == ["t"]
        assert rig.logs.get(TP) is not None
        logs[ours].append(entry(11, CONFIG))
        present = ours
        await loader.caught_up(11)
        assert loader.refusal is None


async def test_metadata_refusal_is_reported_after_the_session_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a controller refuses heartbeats too; the broker gave no reason why it stayed away."""
    answers = [OperatingError("another log", code=ErrorCode.FOREIGN_METADATA)]

    def answer(_request: RpcRequest) -> RpcResponse:
        if answers:
            raise answers.pop()
        return FetchMetadataResponse(high_watermark=7, entries=(entry(7, topic()),))

    async with brokers(answer=answer) as (rig,):
        loader, lifecycle, renewed = rig.parts.loader, type(rig.parts.lifecycle), asyncio.Event()
        monkeypatch.setattr(lifecycle, "session", lambda _: renewed.wait())
        with monkeypatch.context() as patched, capture_logs() as events:
            patched.setattr(lifecycle, "is_session_over", property(lambda _: True))
            rig.tasks.start(loader.run_loader(), "loader")
            while "metadata_fetch_failed" not in {e["event"] for e in events}:
                await asyncio.sleep(0.01)
            assert loader.refusal == "another log"
            assert "metadata_refused" in {e["event"] for e in events}
            assert rig.parts.cache.state.offset < 7, "no entry is replayed"
        renewed.set()
        await loader.caught_up(7)
        assert loader.refusal is None


async def test_metadata_loader_refuses_a_log_that_ends_before_the_applied_offset() -> None:
    """The same log was restored from a backup; a controller without log ids is detected, too."""
    ours = Uuid(b"l" * 16)

    def answer(request: RpcRequest) -> RpcResponse:
        assert isinstance(request, FetchMetadataRequest)
        return FetchMetadataResponse(high_watermark=4, entries=(entry(4, topic()),))

    async with brokers(answer=answer) as (rig,):
        memory = rig.parts.memory
        memory.note_metadata_log_id(ours)
        memory.note_applied(5, 1)
        rig.tasks.start(rig.parts.loader.run_loader(), "loader")
        while rig.parts.loader.refusal is None:
            await asyncio.sleep(0.01)
        assert "ends at offset 4" in rig.parts.loader.refusal
        assert not rig.parts.cache.state.topics
