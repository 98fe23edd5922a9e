"""Malformed batches sent to a real broker are refused, and the log end does not move."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kraftjbod.protocol.record_batch import Compression
from kraftjbod.protocol.records import Record, build_batch
from tests.integration import clients, raw
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.unit.protocol.test_record_validation import BODIES, HEADERS, bomb, sealed

pytestmark = [pytest.mark.process, pytest.mark.clients]

INVALID_RECORD: Final = 87
INVALID_TIMESTAMP: Final = 32
MESSAGE_TOO_LARGE: Final = 10
CORRUPT_MESSAGE: Final = 2


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(
        brokers=1, dirs=1, config={"message.max.unpacked.bytes": str(4 << 20)}
    )


def answer(address: str, topic: str, records: bytes) -> Any:
    """Return the response for the only partition."""
    response = raw.exchange(address, raw.produce_request(topic, records), 9)
    (part,) = response.responses[0].partition_responses
    return part


def bad_batches() -> dict[str, tuple[bytes, int]]:
    """Return each kind of batch with the error code that it gets."""
    body = build_batch([Record(value=b"v")])[61:]
    found = {name: (sealed(body, **fields), int(code)) for name, (fields, code) in HEADERS.items()}
    found |= {name: (batch, INVALID_RECORD) for name, batch in BODIES.items()}
    damaged = bytearray(build_batch([Record(value=b"v")]))
    damaged[-1] ^= 1
    return found | {
        "damage on the way": (bytes(damaged), CORRUPT_MESSAGE),
        "a timestamp beyond 64 bits": (BODIES["a timestamp beyond 64 bits"], INVALID_TIMESTAMP),
        "snappy that claims 4 GB": (BODIES["snappy that claims 4 GB"], MESSAGE_TOO_LARGE),
        "a bomb of zstd": (bomb(100 << 20, Compression.ZSTD), MESSAGE_TOO_LARGE),
        "a bomb of lz4": (bomb(100 << 20, Compression.LZ4), MESSAGE_TOO_LARGE),
        "a record of the year 3000": (
            build_batch([Record(value=b"v", timestamp_ms=32_503_680_000_000)]),
            INVALID_TIMESTAMP,
        ),
        "an offset delta of 2^66": (
            sealed(b"\x1c\x00\x00" + b"\x80" * 9 + b"\x20" + b"\x02k\x01\x00"),
            INVALID_RECORD,
        ),
    }


def test_produce_of_malformed_batches_is_refused_without_moving_log_end(cluster: Cluster) -> None:
    cluster.create_topic("bad", assignments={0: [1]})
    address = cluster.brokers[1].address
    assert raw.produce(address, "bad", raw.batch([b"before"])) == (0, 0)
    wrong = {}
    for name, (records, expected) in bad_batches().items():
        part = answer(address, "bad", records)
        if (part.error_code, part.base_offset) != (expected, -1) or not part.error_message:
            wrong[name] = part
    assert wrong == {}
    assert raw.produce(address, "bad", raw.batch([b"after"])) == (0, 1)
    assert clients.read_confluent(cluster.bootstrap, "bad", 2) == [b"before", b"after"]


def test_produce_response_names_invalid_records(cluster: Cluster) -> None:
    cluster.create_topic("keyed", assignments={0: [1]}, cleanup_policy="compact")
    cluster.create_topic("timely", assignments={0: [1]}, message_timestamp_before_max_ms=1000)
    address = cluster.brokers[1].address
    records = [Record(key=b"k"), Record(value=b"v"), Record(key=b"l"), Record()]
    for compression in Compression:
        part = answer(address, "keyed", build_batch(records, compression=compression))
        assert part.error_code == INVALID_RECORD
        assert [error.batch_index for error in part.record_errors] == [1, 3]
        assert "no key" in part.record_errors[0].batch_index_error_message
    part = answer(address, "timely", build_batch([Record(timestamp_ms=-1), Record(timestamp_ms=9)]))
    assert part.error_code == INVALID_TIMESTAMP
    assert [error.batch_index for error in part.record_errors] == [1]


def test_produce_accepts_large_batches_of_every_compression_in_order(cluster: Cluster) -> None:
    cluster.create_topic("large", assignments={0: [1]})
    address = cluster.brokers[1].address
    for compression in Compression:
        at = 2001 * compression
        small, many = build_batch([Record(value=b"v")]), [Record(value=bytes(400))] * 2000
        large = build_batch(many, compression=compression)
        assert raw.produce(address, "large", small) == (0, at)
        assert raw.produce(address, "large", large) == (0, at + 1)
