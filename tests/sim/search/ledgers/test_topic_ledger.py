from __future__ import annotations

from kraftjbod.core.ids import TopicId
from tests.sim.search.ledgers.topic_ledger import TopicLedger

_OLD, _NEW = TopicId(bytes(15) + b"1"), TopicId(bytes(15) + b"2")


def test_topic_ledger_finds_lost_shrunk_and_returned_topics() -> None:
    told = TopicLedger()
    told.made(_OLD, 1)
    told.made(_OLD, 3)
    assert told.judge({_OLD: 3}) == []
    (shrunk,) = told.judge({_OLD: 2})
    assert "has 2 partitions, and was acknowledged to have 3" in shrunk
    (lost,) = told.judge({_NEW: 3})
    assert "nobody deleted it, and it is gone" in lost
    told.asks_gone(_OLD)
    assert told.judge({}) == told.judge({_OLD: 1}) == []
    told.gone(_OLD)
    assert told.is_gone(_OLD) and told.judge({_NEW: 1}) == []
    (back,) = told.judge({_OLD: 3, _NEW: 1})
    assert "is there, and its deletion was acknowledged" in back
