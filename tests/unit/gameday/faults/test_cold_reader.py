"""``ColdReader`` without a cluster; tests/integration/tour/test_gameday.py plays it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.cold_reader import ColdReader, evict_topic
from kraftjbod.gameday.faults.fault import CannotPlay
from tests.unit.cli.mini_broker import mini_broker


def test_evict_topic_returns_segment_bytes_of_its_topic_only(tmp_path: Path) -> None:
    for name, size_bytes in (("t-0", 10), ("t-11", 20), ("t-other-0", 40), ("t", 80)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000000000000000000.log").write_bytes(bytes(size_bytes))
        (tmp_path / name / "00000000000000000000.index").write_bytes(bytes(1000))
    assert evict_topic([tmp_path], "t") == 30


def test_evict_topic_of_missing_directory_raises_cannot_play(tmp_path: Path) -> None:
    with pytest.raises(CannotPlay, match="Run this on the brokers' host"):
        evict_topic([tmp_path / "elsewhere"], "t")


async def test_cold_reader_undo_deletes_its_backlog_topic_once() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        reader = ColdReader(broker.address, lambda _: None, backlog_bytes=1)
        await reader.undo(client)
        broker.create("t")
        reader._topic = "t"
        await reader.undo(client)
        assert "t" not in broker.topics
        await reader.undo(client)
        assert broker.asked.count("DeleteTopics") == 1
