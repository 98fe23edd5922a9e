from __future__ import annotations

from kraftjbod.core.ids import TopicId
from tests.sim.search.ledgers.topic_ledger import TopicLedger

_OLD, _NEW = TopicId(bytes(15) + b"1"), TopicId(bytes(15) + b"2")


def test_topic_ledger_finds_lost_shrunk_and_returned_topics() -> None:
    ledger = TopicLedger()
    ledger.made(_OLD, 1)
    ledger.made(_OLD, 3)
    assert ledger.judge({_OLD: 3}) == []
    (shrunk,) = ledger.judge({_OLD: 2})
    assert "has 2 partitions, and was acknowledged to have 3" in shrunk
    (lost,) = ledger.judge({_NEW: 3})
    assert "no client deleted it, and it is gone" in lost
    ledger.asks_gone(_OLD)
    assert ledger.judge({}) == ledger.judge({_OLD: 1}) == []
    ledger.gone(_OLD)
    assert ledger.is_gone(_OLD) and ledger.judge({_NEW: 1}) == []
    (back,) = ledger.judge({_OLD: 3, _NEW: 1})
    assert "is there, and its deletion was acknowledged" in back
