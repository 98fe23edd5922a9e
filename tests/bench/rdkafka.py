"""librdkafka without a Python object per record: the client of the throughput figures.

This module calls the C interface of the library that confluent-kafka includes. One call produces a
batch of records, and consumed records are counted in C. So the figures do not depend on the speed
of Python objects.
"""

from __future__ import annotations

import ctypes
import glob
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka

_PRODUCER: Final = 0
_CONSUMER: Final = 1
_COPY_AND_BLOCK: Final = 0x2 | 0x4
_ERROR_CHARS: Final = 512


class BenchClientError(Exception):
    """librdkafka refused; the message is its own."""


class _Message(ctypes.Structure):
    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class _Client:
    """A handle on one topic."""

    def __init__(self, kind: int, settings: Mapping[str, object], topic: str) -> None:
        self._lib = _load()
        error = ctypes.create_string_buffer(_ERROR_CHARS)
        conf = self._lib.rd_kafka_conf_new()
        for key, value in settings.items():
            if self._lib.rd_kafka_conf_set(
                conf, key.encode(), str(value).encode(), error, _ERROR_CHARS
            ):
                raise BenchClientError(error.value.decode())
        self._handle = self._lib.rd_kafka_new(kind, conf, error, _ERROR_CHARS)
        if not self._handle:
            raise BenchClientError(error.value.decode())
        self._topic = self._lib.rd_kafka_topic_new(self._handle, topic.encode(), None)
        self._name = topic

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lib.rd_kafka_topic_destroy(self._topic)
        self._lib.rd_kafka_destroy(self._handle)

    def end_offset(self, partition: int) -> int:
        """Where the partition ends now.

        :raises BenchClientError: if the broker does not answer within ten seconds.
        """
        low, high = ctypes.c_int64(), ctypes.c_int64()
        code = self._lib.rd_kafka_query_watermark_offsets(
            self._handle,
            self._name.encode(),
            partition,
            ctypes.byref(low),
            ctypes.byref(high),
            10_000,
        )
        if code:
            raise BenchClientError(self._lib.rd_kafka_err2str(code).decode())
        return high.value


class BatchProducer(_Client):
    """Passes records to librdkafka by the thousand."""

    def __init__(self, topic: str, settings: Mapping[str, object]) -> None:
        super().__init__(_PRODUCER, settings, topic)

    def produce(self, partition: int, value: bytes, count: int, *, at_once: int = 10_000) -> None:
        """Queue ``value`` ``count`` times; blocks while librdkafka's queue is full."""
        payload = ctypes.create_string_buffer(value, len(value))
        batch = (_Message * at_once)()
        for message in batch:
            message.payload = ctypes.cast(payload, ctypes.c_void_p)
            message.len = len(value)
        left = count
        while left:
            wanted = min(left, at_once)
            queued = self._lib.rd_kafka_produce_batch(
                self._topic, partition, _COPY_AND_BLOCK, batch, wanted
            )
            if queued != wanted:
                raise BenchClientError(f"{queued} of {wanted} records queued")
            left -= queued

    def flush(self, timeout_s: float = 60.0) -> None:
        """Wait until every record has been answered."""
        code = self._lib.rd_kafka_flush(self._handle, int(timeout_s * 1000))
        if code:
            raise BenchClientError(self._lib.rd_kafka_err2str(code).decode())


class CountingConsumer(_Client):
    """Takes records from a topic's beginning and counts them."""

    def __init__(self, topic: str, settings: Mapping[str, object]) -> None:
        super().__init__(_CONSUMER, settings, topic)

    def consume(self, partitions: int, count: int, *, timeout_s: float = 60.0) -> tuple[int, float]:
        """Return once ``count`` records of the first ``partitions`` partitions have come.

        :returns: how many came, and in how many seconds. Leaders are found before that: a client
            that does not know them yet sleeps for half a second first.
        :raises BenchClientError: if they don't come in time.
        """
        # The callback must be a C function; its arguments are ignored.
        ignore = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p)
        for partition in range(partitions):
            self.end_offset(partition)
        queue = self._lib.rd_kafka_queue_new(self._handle)
        began = time.perf_counter()
        for partition in range(partitions):
            self._lib.rd_kafka_consume_start_queue(self._topic, partition, ctypes.c_int64(0), queue)
        deadline = time.monotonic() + timeout_s
        came = 0
        while came < count:
            came += self._lib.rd_kafka_consume_callback_queue(queue, 100, ignore, None)
            if time.monotonic() > deadline:
                raise BenchClientError(f"{came} of {count} records came in {timeout_s:.0f} s")
        seconds = time.perf_counter() - began
        for partition in range(partitions):
            self._lib.rd_kafka_consume_stop(self._topic, partition)
        self._lib.rd_kafka_queue_destroy(queue)
        return came, seconds


def _load() -> Any:
    libs = f"{os.path.dirname(confluent_kafka.__file__)}/../confluent_kafka.libs/librdkafka-*.so*"
    found = glob.glob(libs)
    if not found:
        raise BenchClientError(f"confluent-kafka brings no library at {libs}")
    lib = ctypes.CDLL(found[0])
    for name in ("conf_new", "new", "topic_new", "queue_new"):
        getattr(lib, f"rd_kafka_{name}").restype = ctypes.c_void_p
    lib.rd_kafka_err2str.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    text = ctypes.c_char_p
    lib.rd_kafka_conf_set.argtypes = (pointer, text, text, text, ctypes.c_size_t)
    lib.rd_kafka_new.argtypes = (ctypes.c_int, pointer, text, ctypes.c_size_t)
    lib.rd_kafka_topic_new.argtypes = (pointer, text, pointer)
    lib.rd_kafka_topic_destroy.argtypes = (pointer,)
    lib.rd_kafka_destroy.argtypes = (pointer,)
    lib.rd_kafka_flush.argtypes = (pointer, ctypes.c_int)
    lib.rd_kafka_query_watermark_offsets.argtypes = (
        pointer,
        text,
        ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int,
    )
    lib.rd_kafka_produce_batch.argtypes = (
        pointer,
        ctypes.c_int32,
        ctypes.c_int,
        ctypes.POINTER(_Message),
        ctypes.c_int,
    )
    lib.rd_kafka_queue_new.argtypes = (pointer,)
    lib.rd_kafka_queue_destroy.argtypes = (pointer,)
    lib.rd_kafka_consume_start_queue.argtypes = (pointer, ctypes.c_int32, ctypes.c_int64, pointer)
    lib.rd_kafka_consume_callback_queue.argtypes = (pointer, ctypes.c_int, pointer, pointer)
    lib.rd_kafka_consume_stop.argtypes = (pointer, ctypes.c_int32)
    return lib
