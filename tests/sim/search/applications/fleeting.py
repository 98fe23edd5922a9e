"""``Fleeting``: a topic that is created, written, read, enlarged, has records deleted, is
deleted, and is recreated under the same name.

One task does all that in order. A request without an answer may still take effect later,
also on a newer topic of that name, unless the request has a topic id.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from kraftjbod.cli.clients.cluster_admin import create_partitions
from kraftjbod.cli.clients.cluster_client import kafka_error
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicId
from kraftjbod.protocol.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.topic_load import (
    OwnedTopic,
    TopicLoad,
    require_topic,
)
from tests.sim.search.ledgers.ledger import ANYWHERE, Ledger
from tests.sim.search.ledgers.topic_ledger import TopicLedger

T = TypeVar("T")
TOPIC: Final = "fleeting"
#: A topic is created with one or two partitions, and grows.
_MOST_PARTITIONS: Final = 3
_BATCHES: Final = (1, 4, 2, 7)
"""Records of a batch: DeleteRecords may ask for an offset in the middle of one."""
_RECORD_PAUSE_S: Final = 0.35
_STEPS: Final = (1, 5)
_STEP_PAUSE_S: Final = (0.2, 2.0)
#: How long producers and consumers continue after the deletion.
_LATE_S: Final = 1.5
_GONE_PAUSE_S: Final = 0.6
_AGAIN_S: Final = 0.2
_ALL_RECORDS: Final = 0.2
#: Share of the seeds in which one topic stays until the end, with deletions of records.
_LASTING: Final = 0.35
_HIGH_WATERMARK: Final = -1
#: Versions. DeleteTopics: topics by id. CreateTopics: the answer has the id.
_IDS_DELETED: Final = 6
_IDS_MADE: Final = 7


class Fleeting(OwnedTopic):
    """See :class:`~.application.Application`. ``played`` counts the answered requests."""

    #: Created by the caller before the start.
    topics: Mapping[str, int] = MappingProxyType({TOPIC: 2})

    def __init__(
        self, rng: random.Random, around: Surroundings, ledger: Ledger, topics: TopicLedger
    ) -> None:
        super().__init__(around)
        self.played: Counter[str] = Counter()
        self._rng = rng
        self._ledger = ledger
        self._topics = topics
        self._client = around.client("fleeting-owner")
        self._writer = around.client("fleeting-writer")
        self._reader = around.client("fleeting-reader")
        self._progress_ms = -1
        self._deleted: list[TopicId] = []
        #: A create request from before a deletion had no answer, and may still create a topic.
        self._is_making_in_doubt = False
        #: By partition: largest offset of unanswered DeleteRecords, which may hit a later topic.
        self._late_starts: Counter[int] = Counter()

    def start(self) -> None:
        self._owning = self._around.begin(self._own(), "fleeting-owner")

    def silent_since(self, since_ms: int) -> list[str]:
        acked_ms = -1 if self._load is None else self._load.acked_ms
        is_silent = max(self._progress_ms, acked_ms) <= since_ms
        return [f"{TOPIC} made no progress since {since_ms / 1000:.3f} s"] if is_silent else []

    # --- its life --------------------------------------------------------------------------------

    async def _own(self) -> None:
        """Run the topic. In some seeds the first one stays, so that a stuck replica can show."""
        is_lasting = self._rng.random() < _LASTING
        while not self._is_stopping:
            load = self._load = await self._make()
            await self._live(load)
            while is_lasting and not self._is_stopping:
                await self._live(load)
            if not self._is_stopping:
                await self._delete(load)
                self._load = None
                await asyncio.sleep(self._rng.uniform(0, _GONE_PAUSE_S))

    async def _live(self, load: TopicLoad) -> None:
        for _ in range(self._rng.randint(*_STEPS)):
            await asyncio.sleep(self._rng.uniform(*_STEP_PAUSE_S))
            if self._is_stopping:
                return
            step = self._rng.choice((self._grow, self._delete_records, self._delete_again))
            await step(load)
        if self._rng.random() < 0.4:
            # Consumers have read the records that a deletion removes.
            while load.unread() and not self._is_stopping:
                await asyncio.sleep(_AGAIN_S)

    async def _make(self) -> TopicLoad:
        """Create the next topic of that name."""
        partitions = self._rng.randint(1, _MOST_PARTITIONS - 1)
        topic_id = await self._until_done(f"make {TOPIC}", lambda: self._try_to_make(partitions))
        count = len(self._client.metadata.topic(TOPIC).partitions)
        self._topics.made(topic_id, count)
        load = TopicLoad(
            self._around,
            self._ledger,
            TOPIC,
            topic_id,
            key=self._ledger.add_incarnation(TOPIC, topic_id),
            writer=self._writer,
            reader=self._reader,
            pause_s=_RECORD_PAUSE_S,
            batches=_BATCHES,
        )
        for partition, start in self._late_starts.items():
            self._ledger.asks_start(load.key, partition, start)
        for _ in range(count):
            load.begin()
        self._around.note(f"{load.key} is made with {count} partitions")
        self._note_progress("make")
        return load

    async def _try_to_make(self, partitions: int) -> TopicId:
        topic = CreateTopicsRequest.CreatableTopic(
            name=TOPIC, num_partitions=partitions, replication_factor=3
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self._client.request_timeout_ms)
        was_in_doubt, self._is_making_in_doubt = self._is_making_in_doubt, True
        response = await self._client.request_controller(request, min_version=_IDS_MADE)
        (result,) = response.topics
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise kafka_error(result.error_code, f"topic {TOPIC}", result.error_message)
        self._is_making_in_doubt = was_in_doubt
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            if self._deleted and not was_in_doubt:
                self._around.found(f"{TOPIC} cannot be made: it exists, and was deleted")
            return await self._found_id()
        topic_id = TopicId(bytes(result.topic_id))
        self._topics.made(topic_id, partitions)
        while await self._found_id() != topic_id:
            await asyncio.sleep(_AGAIN_S)
        return topic_id

    async def _found_id(self) -> TopicId:
        """Return the id of the existing topic once the broker knows it."""

        async def find() -> TopicId:
            found = TopicId(self._client.metadata.topic(TOPIC).topic_id)
            if self._topics.is_gone(found):
                what = f"{TOPIC}: the broker does not know the new one"
                raise kafka_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what)
            return found

        await self._client.retry(lambda: self._client.refresh_metadata([TOPIC]))
        return await self._client.retry(find, topics=[TOPIC])

    async def _grow(self, load: TopicLoad) -> None:
        count = load.partitions + 1
        if count > _MOST_PARTITIONS:
            return

        async def attempt() -> None:
            try:
                await create_partitions(self._client, TOPIC, count)
            except OperatingError as e:
                if e.code is not ErrorCode.INVALID_PARTITIONS:
                    raise
                # It has that many partitions if an earlier attempt had no answer.
                await self._client.refresh_metadata([TOPIC])
                if len(self._client.metadata.topic(TOPIC).partitions) < count:
                    raise

        await self._until_done(f"grow {load.key} to {count}", attempt)
        self._topics.made(load.topic_id, count)
        load.begin()
        self._note_progress("grow")

    # --- deletions -------------------------------------------------------------------------------

    async def _delete(self, load: TopicLoad) -> None:
        load.is_ending = True
        self._topics.asks_gone(load.topic_id)
        tries = 0

        async def attempt() -> None:
            nonlocal tries
            tries += 1
            code = await self._ask_to_delete(load.topic_id)
            if code == ErrorCode.UNKNOWN_TOPIC_ID and tries == 1:
                self._around.found(f"{load.key} cannot be deleted: it is not known")
            if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID):
                raise kafka_error(code, f"topic {load.key}")

        await self._until_done(f"delete {load.key}", attempt)
        self._topics.gone(load.topic_id)
        self._deleted.append(load.topic_id)
        self._around.begin(self._end_later(load), f"end of {load.key}")
        self._note_progress("delete")

    async def _end_later(self, load: TopicLoad) -> None:
        await asyncio.sleep(self._rng.uniform(0, _LATE_S))
        await load.end()

    async def _delete_again(self, _: TopicLoad) -> None:
        """Delete a deleted topic again, like a client that had no answer."""
        if not self._deleted:
            return
        topic_id = self._rng.choice(self._deleted)
        try:
            code = await self._ask_to_delete(topic_id)
        except OperatingError:
            return
        if code == ErrorCode.NONE:
            self._around.found(f"topic {topic_id} is deleted twice")
        self._note_progress("delete again")

    async def _ask_to_delete(self, topic_id: TopicId) -> int:
        request = DeleteTopicsRequest(timeout_ms=self._client.request_timeout_ms)
        request.topics = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)]
        response = await self._client.request_controller(request, min_version=_IDS_DELETED)
        (result,) = response.responses
        return result.error_code

    async def _delete_records(self, load: TopicLoad) -> None:
        """Delete once, up to an acknowledged record or to the high watermark."""
        partition = self._rng.randrange(load.partitions)
        end = self._ledger.acked_end(load.key, partition)
        is_all = self._rng.random() < _ALL_RECORDS
        offset = self._rng.randint(min(1, end), end)
        at_most = ANYWHERE if is_all else offset
        self._ledger.asks_start(load.key, partition, at_most)
        late = self._late_starts[partition]
        self._late_starts[partition] = max(late, at_most)
        try:
            start = await self._ask_to_start(load, partition, _HIGH_WATERMARK if is_all else offset)
        except OperatingError as e:
            self._around.note(f"records of {load.key}-{partition} up to {offset}: {e}")
            self._ledger.leaves_start_open(load.key, partition)
            return
        self._late_starts[partition] = late
        if start < 0:
            self._ledger.leaves_start_open(load.key, partition)
            return
        wrong = self._ledger.take_start(load.key, partition, 0 if is_all else offset, start)
        if wrong:
            self._around.found(wrong)
        self._around.note(f"{load.key}-{partition} starts at {start}")
        self._note_progress("delete records")

    async def _ask_to_start(self, load: TopicLoad, partition: int, offset: int) -> int:
        """Return the log start offset of the answer, or -1 if it was refused."""
        kind = DeleteRecordsRequest
        part = kind.DeleteRecordsPartition(partition_index=partition, offset=offset)
        timeout_ms = self._client.request_timeout_ms
        request = kind(
            topics=[kind.DeleteRecordsTopic(name=TOPIC, partitions=[part])],
            timeout_ms=timeout_ms // 2,
        )
        await self._client.refresh_metadata([TOPIC])
        require_topic(self._client, TOPIC, load.topic_id)
        leader = self._client.metadata.leader(TOPIC, partition)
        if not await self._is_known_to(leader, load.topic_id):
            return -1
        response = await self._client.request(leader, request, timeout_ms=timeout_ms)
        ((result,),) = (topic.partitions for topic in response.topics)
        if result.error_code == ErrorCode.NONE:
            return result.low_watermark
        self._around.note(
            f"records of {load.key}-{partition} up to {offset}: {ErrorCode(result.error_code)!r}"
        )
        return -1

    async def _is_known_to(self, broker_id: int, topic_id: TopicId) -> bool:
        """DeleteRecords has no topic id, so a paused broker may apply it to a former topic."""
        topic = MetadataRequest.MetadataRequestTopic(name=TOPIC)
        request = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
        response = await self._client.request(
            broker_id, request, timeout_ms=self._client.request_timeout_ms
        )
        return any(TopicId(bytes(one.topic_id)) == topic_id for one in response.topics)

    # --- asking ----------------------------------------------------------------------------------

    async def _until_done(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat until success. The caller that waits for the end has a time limit."""
        last_message = ""
        while True:
            try:
                await self._client.refresh_metadata([TOPIC])
                return await attempt()
            except OperatingError as e:
                if last_message != e.message:
                    last_message = e.message
                    self._around.note(f"{what}: {last_message}")
            await asyncio.sleep(_AGAIN_S)

    def _note_progress(self, what: str) -> None:
        self.played[what] += 1
        self._progress_ms = self._around.now_ms()
