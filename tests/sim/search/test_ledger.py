from __future__ import annotations

from kraftjbod.testing.simulation.search.ledger import Ledger, Stream, value_of


def _ledger(*offsets: int) -> tuple[Ledger, Stream]:
    ledger = Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0))
    for number, offset in enumerate(offsets):
        assert not stream.take_ack(number, offset, at_ms=number)
    return ledger, stream


def test_what_was_acknowledged_is_there_once_in_order_and_unchanged() -> None:
    ledger, stream = _ledger(0, 1, 3)
    zero, one, two = (value_of(stream.name, number) for number in range(3))
    assert ledger.acked_end("t", 0) == 4
    assert ledger.judge("t", 0, {0: zero, 1: one, 2: b"other:7", 3: two}) == []
    (lost,) = ledger.judge("t", 0, {0: zero, 1: one})
    assert "offset 3: t-0-0:2 was acknowledged" in lost and "nothing is there" in lost
    (doubled,) = ledger.judge("t", 0, {0: zero, 1: one, 2: zero, 3: two})
    assert "offset 2: t-0-0:0 comes after 1" in doubled
    assert len(ledger.judge("t", 0, {0: one, 1: zero, 3: two})) == 3


def test_what_a_consumer_read_stays() -> None:
    ledger, _ = _ledger()
    assert not ledger.saw("t", 0, 5, b"a:1")
    assert "read as a:1 and later as a:2" in ledger.saw("t", 0, 5, b"a:2")
    assert "a consumer read a:1, now nothing" in ledger.judge("t", 0, {})[0]


def test_offsets_of_one_producer_grow() -> None:
    _, stream = _ledger(4)
    assert "record 1 was acknowledged at offset 4" in stream.take_ack(1, 4, at_ms=9)
