"""The cleaner's figures are there under Kafka's names, and say what is so."""

from __future__ import annotations

from kraftjbod.core.errors import CorruptRecordError
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import TP, brokers, partition, produce, topic


async def test_what_cannot_be_cleaned_is_counted_by_directory():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(3)), 9)
        handle = rig.logs.get(TP)
        assert handle is not None
        tag = f'logDirectory="{handle.log_dir.path}"'
        names = (f"uncleanable-partitions-count,{tag}", f"uncleanable-bytes,{tag}")
        snapshot = rig.around.metrics.snapshot()
        assert [snapshot[name] for name in names] == [0, 0]
        assert (snapshot["max-dirty-percent"], snapshot["cleaner-recopy-percent"]) == (0, 0)
        await rig.logs.cleaner._give_up(handle, CorruptRecordError("test", offset=1))
        snapshot = rig.around.metrics.snapshot()
        assert [snapshot[name] for name in names] == [1, handle.size_bytes]
        rig.logs.cleaner.truncated(TP)
        assert rig.around.metrics.snapshot()[names[0]] == 0
