"""``GroupReader`` over librdkafka; test_tools.py reads in groups of a real cluster."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from kraftjbod.cli.console.group_reader import GroupReader, ReceivedRecord
from kraftjbod.core.errors import ConfigError
from tests.unit.cli.mini_broker import MiniBroker, mini_broker
from tests.unit.cli.test_console_consumer import fill


async def test_group_reader_assigned_to_partition_reads_from_start_offset() -> None:
    async with mini_broker() as broker:
        await fill(broker)
        two = await asyncio.to_thread(_read, broker, "1", 2)
        assert [(topic, partition, r.offset, r.key, r.value) for topic, partition, r, _ in two] == [
            ("t", 0, 1, b"k", b"1"),
            ("t", 0, 2, b"k", b"2"),
        ]
        assert len(await asyncio.to_thread(_read, broker, "earliest", 3)) == 3
        assert await asyncio.to_thread(_read, broker, "latest", 1) == []


def _read(broker: MiniBroker, start: str, count: int) -> list[ReceivedRecord]:
    reader = GroupReader({"bootstrap.servers": broker.address, "group.id": "g"})
    try:
        reader.assign("t", 0, start)
        handed = (each for each in reader.records(3_000 if start != "latest" else 1) if each)
        return list(islice(handed, count))
    finally:
        reader.close()


def test_group_reader_with_unknown_setting_raises_config_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r'"nobody\.knows"'):
        GroupReader({"group.id": "g", "nobody.knows": "1"})
