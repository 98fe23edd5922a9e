"""``TransactionIndex`` of aborted transactions: file format, truncation and search."""

from __future__ import annotations

import random

from kraftjbod.storage.segments.transaction_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    TransactionIndex,
)

SOME = TransactionIndex(
    [
        AbortedTransaction(7, 1, 10, 3),
        AbortedTransaction(8, 3, 12, 13),
        AbortedTransaction(7, 20, 24, 25),
    ]
)


def test_transaction_index_is_read_as_written_and_rejects_damage() -> None:
    data = SOME.to_bytes()
    back = TransactionIndex.from_bytes(5, data)
    assert back is not None and back.entries == SOME.entries
    assert TransactionIndex.from_bytes(11, data) is None, "its first marker is not in the segment"
    assert TransactionIndex.from_bytes(5, data[:-1]) is None
    swapped = data[ENTRY_BYTES:] + data[:ENTRY_BYTES]
    assert TransactionIndex.from_bytes(5, swapped) is None


def test_transaction_index_below_removes_later_entries() -> None:
    assert [one.last_offset for one in SOME.below(24).entries] == [10, 12]
    assert len(SOME.below(0)) == 0 and len(SOME.below(25)) == 3


def test_transaction_index_collect_finds_each_overlapping_transaction() -> None:
    dice = random.Random(3)
    for _ in range(300):
        entries, begun, offset = [], dict[int, int](), 0
        for _ in range(dice.randrange(30)):
            producer_id = dice.randrange(4)
            if producer_id in begun:
                first = begun.pop(producer_id)
                stable = min(begun.values(), default=offset + 1)
                entries.append(AbortedTransaction(producer_id, first, offset, stable))
            else:
                begun[producer_id] = offset
            offset += 1
        cut = dice.randint(0, len(entries))
        stable = min(begun.values(), default=offset)
        end = dice.randint(0, stable)
        begin = dice.randint(0, end)
        found: list[AbortedTransaction] = []
        for part in (entries[:cut], entries[cut:]):
            if not TransactionIndex(part).collect(begin, end, found):
                break
        wanted = [one for one in entries if one.first_offset < end and one.last_offset >= begin]
        assert found == wanted
