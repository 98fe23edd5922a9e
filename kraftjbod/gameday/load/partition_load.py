"""LOOP. ``PartitionLoad``: one producer's load on one partition, and its acknowledgements."""

from __future__ import annotations

import time

from kraftjbod.cli.clients.producer import Producer, now_ms
from kraftjbod.core.errors import OperatingError
from kraftjbod.gameday.load.acknowledgements import Ack, Acknowledgements


class PartitionLoad(Acknowledgements):
    """A producer's load on one partition: sends the records of ``stream`` in order, one batch at a
    time, and keeps the acknowledgements."""

    async def send(self, producer: Producer, count: int) -> bool:
        """Send the next ``count`` records; return ``False`` and set ``error`` at a failure.

        A failed producer must not send again: the outcome of its last batch is unknown.
        """
        records = self.stream.records(self.acked, count, now_ms())
        sent_s = time.monotonic()
        try:
            offset = await producer.send(self.partition, records)
        except OperatingError as e:
            self.in_doubt, self.error = len(records), str(e)
            return False
        at_s = time.monotonic()
        self.acks.append(Ack(at_s=at_s, offset=offset, count=len(records), took_s=at_s - sent_s))
        self.acked += len(records)
        return True
