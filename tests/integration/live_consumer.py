"""A consumer that reads during faults and finds gaps, repetitions and missing records.

:class:`LiveConsumer` is librdkafka's, assigned to every partition of one topic from offset 0, in a
separate thread. Offsets must be consecutive, and the numbers written by ``checker.Load`` must only
grow."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Final, Self

from confluent_kafka import Consumer, Message, TopicPartition

from tests.integration.checker import Load

_CATCH_UP_S: Final = 60.0
_MOST_FINDINGS: Final = 20


class LiveConsumer:
    """Reads ``topic`` from ``with`` until :meth:`finish`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._stopping = threading.Event()
        self._crash: BaseException | None = None
        self._findings: list[str] = []
        # Next expected offset and last seen number, by partition.
        self._next: dict[int, int] = defaultdict(int)
        self._last: dict[int, int] = defaultdict(lambda: -1)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "live-consumer",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 500,
                # Broken connections are expected in these tests.
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="live-consumer", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    @property
    def records(self) -> int:
        return sum(self._next.values())

    def finish(self, load: Load) -> list[str]:
        """Wait until all acknowledged records were read; return one sentence per defect."""
        ends = {
            part.partition: max(ack.offset or 0 for ack in part.acks) for part in load.partitions
        }
        deadline = time.monotonic() + _CATCH_UP_S
        while any(self._next[index] <= end for index, end in ends.items()):
            if self._crash is not None:
                raise self._crash
            if time.monotonic() > deadline:
                return [*self._findings, f"read to {dict(self._next)}, acknowledged to {ends}"]
            time.sleep(0.02)
        self._stopping.set()
        return self._findings

    def _run(self) -> None:
        try:
            self._consumer.assign(
                [TopicPartition(self._topic, index, 0) for index in range(self._partitions)]
            )
            while not self._stopping.is_set():
                for message in self._consumer.consume(num_messages=1000, timeout=0.1):
                    if message.error() is None:
                        self._check(message)
        except BaseException as e:
            self._crash = e
            raise

    def _check(self, message: Message) -> None:
        index, offset, value = message.partition(), message.offset(), message.value()
        assert index is not None and offset is not None and value is not None, message
        number = int(value[:20])
        if offset != self._next[index]:
            self._find(f"{self._topic}-{index}: offset {offset} came, not {self._next[index]}")
        if number <= self._last[index]:
            self._find(f"{self._topic}-{index}: {number} follows {self._last[index]} at {offset}")
        self._next[index], self._last[index] = offset + 1, number

    def _find(self, finding: str) -> None:
        if len(self._findings) < _MOST_FINDINGS:
            self._findings.append(finding)
