"""Translation of the Java client's settings for librdkafka."""

from __future__ import annotations

import pytest

from kraftjbod.cli.terminal.library_client import library_settings, make_consumer, make_producer
from kraftjbod.core.errors import ConfigError


def test_library_settings_translates_java_names() -> None:
    java = {
        "buffer.memory": "2048",
        "fetch.max.wait.ms": "7",
        "send.buffer.bytes": "-1",
        "key.serializer": "a.B",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer."
        "CooperativeStickyAssignor, range",
    }
    assert library_settings(java) == {
        "log_level": "2",
        "client.id": "kraftjbod-tools",
        "queue.buffering.max.kbytes": "2",
        "fetch.wait.max.ms": "7",
        "partition.assignment.strategy": "cooperative-sticky,range",
    }


def test_make_producer_accepts_any_acks_and_make_consumer_rejects_unknown_setting() -> None:
    for acks in ("all", "1", "0"):
        make_producer({"bootstrap.servers": "127.0.0.1:1", "acks": acks})
    with pytest.raises(ConfigError, match=r'"nobody\.knows"'):
        make_consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "nobody.knows": "1"})
