"""LOOP. ``SampleWriter``: brings one broker's samples to an internal topic.

All of a broker's go to one partition, so that a round is one conversation, and in batches, because
what leaders and their followers do for a batch costs more than what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.internal.internal_topic_creator import Creation, InternalTopicCreator
from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.timing import Deadline
from kraftjbod.protocol.record_batch import Compression
from kraftjbod.protocol.records import Record, build_batch

BATCH_RECORDS: Final = 250
#: Records that are made before others get their turn: a millisecond or two.
SLICE_RECORDS: Final = 50
#: The leader alone answers: samples are not worth waiting for followers.
_ACKS: Final = 1


class SampleWriter:
    """``close()`` at the end."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        topic: InternalTopic,
        producer: InternalProducer,
        creator: InternalTopicCreator,
    ) -> None:
        self._broker_id = broker_id
        self._topic = topic
        self._producer = producer
        self._creator = creator

    async def ensure_topic(self) -> Creation:
        """Whether samples have anywhere to go, or will soon.

        :raises OperatingError: why the controller does not create the topic.
        """
        return await self._creator.ensure(self._topic)

    async def send(self, records: Sequence[Record], deadline: Deadline) -> None:
        """One batch, tried again until ``deadline``; it may be there twice.

        :raises OperatingError: what went wrong last.
        """
        # Every client opens gzip, and names that come again shrink to a tenth.
        await self._producer.send(
            self._topic.name,
            build_batch(records, compression=Compression.GZIP),
            acks=_ACKS,
            deadline=deadline,
            choose=lambda partitions: self._broker_id % partitions,
        )

    def close(self) -> None:
        self._producer.close()
