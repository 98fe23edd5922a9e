"""The index of aborted transactions: its bytes, and what it finds."""

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


def test_bytes_come_back_and_what_is_spoilt_does_not() -> None:
    data = SOME.to_bytes()
    back = TransactionIndex.from_bytes(5, data)
    assert back is not None and back.entries == SOME.entries
    assert TransactionIndex.from_bytes(11, data) is None, "its first marker is not in the segment"
    assert TransactionIndex.from_bytes(5, data[:-1]) is None
    swapped = data[ENTRY_BYTES:] + data[:ENTRY_BYTES]
    assert TransactionIndex.from_bytes(5, swapped) is None


def test_what_is_cut_off_is_gone() -> None:
    assert [one.last_offset for one in SOME.below(24).entries] == [10, 12]
    assert len(SOME.below(0)) == 0 and len(SOME.below(25)) == 3


def test_all_that_overlaps_is_found_and_the_search_ends_in_time() -> None:
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
