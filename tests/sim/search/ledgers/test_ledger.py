from __future__ import annotations

from kraftjbod.core.ids import TopicId
from tests.sim.search.ledgers.ledger import (
    ANYWHERE,
    Ledger,
    Reign,
    StampedOffset,
    Stream,
    stamped_ms,
    value_of,
)


def _ledger(*offsets: int) -> tuple[Ledger, Stream]:
    ledger = Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0))
    for number, offset in enumerate(offsets):
        assert not stream.take_ack(number, offset, at_ms=number)
    return ledger, stream


def test_judge_finds_lost_repeated_and_reordered_records() -> None:
    ledger, stream = _ledger(0, 1, 3)
    zero, one, two = (value_of(stream.name, number) for number in range(3))
    assert ledger.acked_end("t", 0) == 4
    assert ledger.judge("t", 0, {0: zero, 1: one, 2: b"other:7", 3: two}) == []
    (lost,) = ledger.judge("t", 0, {0: zero, 1: one})
    assert "offset 3: t-0-0:2 was acknowledged" in lost and "nothing is there" in lost
    (doubled,) = ledger.judge("t", 0, {0: zero, 1: one, 2: zero, 3: two})
    assert "offset 2: t-0-0:0 comes after 1" in doubled
    assert len(ledger.judge("t", 0, {0: one, 1: zero, 3: two})) == 3


def test_record_that_changes_after_it_was_read_is_found() -> None:
    ledger, _ = _ledger()
    assert not ledger.saw("t", 0, 5, b"a:1")
    assert "read as a:1 and later as a:2" in ledger.saw("t", 0, 5, b"a:2")
    assert "a consumer read a:1, now nothing" in ledger.judge("t", 0, {})[0]


def test_take_ack_finds_offsets_that_do_not_grow() -> None:
    _, stream = _ledger(4)
    assert "record 1 was acknowledged at offset 4" in stream.take_ack(1, 4, at_ms=9)


def test_wrong_start_finds_log_starts_outside_acknowledged_and_requested_range() -> None:
    ledger, stream = _ledger(0, 1, 2)
    log = {offset: value_of(stream.name, offset) for offset in range(3)}
    assert "starts at 1, and no client asked for more than 0" in ledger.wrong_start("t", 0, 1)
    ledger.asks_start("t", 0, 2)
    assert ledger.judge("t", 0, {2: log[2]}, start=2) == []
    assert ledger.take_start("t", 0, asked=2, start=2) == ""
    assert "starts at 1, and was acknowledged to at 2" in ledger.wrong_start("t", 0, 1)
    assert ledger.judge("t", 0, log)[0] == ledger.wrong_start("t", 0, 0)
    assert ledger.take_start("t", 0, asked=1, start=1) == ""
    assert "up to 3 is said to start at 2" in ledger.take_start("t", 0, asked=3, start=2)
    (lost,) = ledger.judge("t", 0, {}, start=2)
    assert "t-0 offset 2: t-0-0:2 was acknowledged" in lost
    ledger.retained_bytes["t"] = 100
    assert ledger.may_start("t", 0) == ANYWHERE


def test_record_of_former_topic_of_same_name_is_found() -> None:
    ledger = Ledger()
    old, new = (ledger.add_incarnation("t", TopicId(bytes(15) + one)) for one in (b"1", b"2"))
    assert ledger.key_of("t", TopicId(bytes(15) + b"2")) == new != old
    assert ledger.key_of("t", TopicId(bytes(16))) == ledger.key_of("t", None) == "t"
    stream = ledger.add(Stream(name=f"{old}-0-0", topic=old, partition=0))
    ledger.add(Stream(name=f"{new}-0-0", topic=new, partition=0))
    stray = value_of(stream.name, 0)
    assert ledger.saw(old, 0, 0, stray) == ""
    assert f"{new}-0 offset 0: {stray.decode()} is of {old}-0" in ledger.saw(new, 0, 0, stray)
    assert ledger.judge(new, 0, {0: stray}) == [ledger.saw(new, 0, 0, stray)]


def test_acks_1_record_may_be_lost_with_its_leader_only() -> None:
    ledger = Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0, acks_all=False))
    assert ledger.loose == {("t", 0)}
    for number in range(3):
        stream.take_ack(number, number, at_ms=number * 10, sent_ms=number * 10 - 1, leader=2)
    zero, one, two = (value_of(stream.name, number) for number in range(3))
    stream.next_number = 3
    assert ledger.judge("t", 0, {0: zero}) == []
    assert ledger.judge("t", 0, {0: zero}, reign=Reign(leader=3, since_ms=0)) == []
    assert ledger.judge("t", 0, {0: zero}, reign=Reign(leader=2, since_ms=20)) == []
    (lost,) = ledger.judge("t", 0, {0: zero, 1: one}, reign=Reign(leader=2, since_ms=15))
    assert "offset 2: t-0-0:2 was acknowledged" in lost
    assert ledger.judge("t", 0, {0: zero, 1: one, 2: one, 3: two}) == [], "a retry may double it"
    (reordered,) = ledger.judge("t", 0, {0: one, 1: zero})
    assert "offset 1: t-0-0:0 comes after 1" in reordered


def test_record_that_no_producer_sent_is_found() -> None:
    ledger = Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0, acks_all=False))
    stream.next_number = 2
    assert ledger.read_loosely("t", 0, 7, b"t-0-0:1") == ""
    for value in (b"t-0-0:2", b"t-0-0:", b"\xff", b"other-0-0:0"):
        assert "no producer sent it" in ledger.read_loosely("t", 0, 7, value)
    assert "is of t-0" in ledger.read_loosely("t", 1, 7, b"t-0-0:1")


def test_acknowledged_returns_timestamps_of_acks_all_records_only() -> None:
    ledger = Ledger()
    for name, acks_all in (("t-0-0", True), ("t-0-1", False)):
        stream = ledger.add(Stream(name=name, topic="t", partition=0, acks_all=acks_all))
        stream.take_ack(0, 5, at_ms=9, stamped_ms=8)
    assert ledger.acknowledged("t", 0) == [StampedOffset(5, 8)]
    assert ledger.acknowledged("t", 1) == []


def test_stamped_ms_sometimes_decreases_between_successive_records() -> None:
    stamps = [stamped_ms(number, now_ms=number * 100) for number in range(20)]
    assert stamps != sorted(stamps) and len(set(stamps)) == len(stamps)


def test_ledger_is_known_is_true_for_topic_ids_of_added_incarnations() -> None:
    ledger, topic_id = Ledger(), TopicId(bytes(16))
    assert not ledger.is_known(topic_id)
    ledger.add_incarnation("t", topic_id)
    assert ledger.is_known(topic_id)
