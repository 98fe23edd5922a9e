"""Leaders of partitions that answer markers."""

from __future__ import annotations

import pytest

from kraftjbod.protocol import kafka_codec
from kraftjbod.protocol.kafka_codec import ApiKey
from tests.unit.broker.transactions.transaction_rig import Partitions


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> Partitions:
    monkeypatch.setitem(kafka_codec.SUPPORTED, ApiKey.WRITE_TXN_MARKERS, (1, 2))
    return Partitions()
