"""Walks over batches: up to the first unsound batch, and around damage."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.segments.batch_walk import (
    Damage,
    Located,
    batch_at,
    require_sound,
    sent_batches,
    sound_batches,
    walk_around_damage,
)
from tests.each_case import each_case
from tests.faults.rig import batch

BODY = bytes(40)
SIZE = len(batch(2, body=BODY))


def data_of(count: int) -> bytearray:
    """Return batches of two records each."""
    return bytearray(b"".join(batch(2, base_offset=2 * i, body=BODY) for i in range(count)))


def read_at_of(data: bytes | bytearray):  # type: ignore[no-untyped-def]  # a closure
    return lambda position, size: bytes(data[position : position + size])


def walk(data: bytes | bytearray, **more: int) -> list[int]:
    seen: list[int] = []
    found = sound_batches(
        read_at_of(data),
        position=more.get("position", 0),
        end=len(data),
        next_offset=more.get("next_offset", 0),
        check_crc_of_each=True,
        on_progress=seen.append,
    )
    offsets = [located.header.base_offset for located in found]
    assert sum(seen) <= len(data)
    return offsets


def walk_damaged(
    data: bytes | bytearray, known: tuple[int, ...] = (), end_offset: int = 10
) -> list[int | Damage]:
    found = walk_around_damage(
        read_at_of(data),
        end=len(data),
        begin_offset=0,
        end_offset=end_offset,
        known=lambda position: [k for k in known if k > position],
        check_crc_of_each=True,
        on_progress=lambda size_bytes: None,
    )
    return [one.header.base_offset if isinstance(one, Located) else one for one in found]


def test_sound_batches_end_before_the_first_unsound_batch() -> None:
    data = data_of(4)
    assert walk(data) == [0, 2, 4, 6]
    assert walk(data, position=SIZE, next_offset=2) == [2, 4, 6]
    assert walk(data[:-1]) == [0, 2, 4]
    data[2 * SIZE + 70] ^= 1
    assert walk(data) == [0, 2]


def test_sound_batches_end_at_a_gap() -> None:
    assert walk(batch(2) + batch(2, base_offset=3)) == [0]
    assert walk(batch(2) + batch(2, base_offset=1)) == [0]


def test_sound_batches_never_read_beyond_the_file_for_a_wrong_length() -> None:
    data = data_of(2)
    data[SIZE + 8] = 0x7F
    asked: list[int] = []

    def read_at(position: int, size: int) -> bytes:
        asked.append(size)
        return bytes(data[position : position + size])

    found = sound_batches(
        read_at,
        position=0,
        end=len(data),
        next_offset=0,
        check_crc_of_each=True,
        on_progress=lambda size_bytes: None,
    )
    assert [located.header.base_offset for located in found] == [0]
    assert max(asked) <= len(data)


def test_walk_around_damage_finds_all_batches_except_damaged_bodies() -> None:
    data = data_of(5)
    data[SIZE + 70] ^= 1
    data[3 * SIZE + 70] ^= 1
    assert walk_damaged(data) == [0, Damage(2, 4, SIZE), 4, Damage(6, 8, 3 * SIZE), 8]


def test_walk_around_damage_joins_adjacent_damage_up_to_a_known_batch() -> None:
    data = data_of(5)
    data[SIZE + 70] ^= 1
    data[2 * SIZE + 70] ^= 1
    assert walk_damaged(data, known=(2 * SIZE, 3 * SIZE)) == [0, Damage(2, 6, SIZE), 6, 8]


@each_case("at", range(0, 61))
def test_walk_around_damage_passes_a_damaged_header_except_the_leader_epoch_by_the_index(
    at: int,
) -> None:
    """The leader epoch is the exception, because no other part of the batch confirms it."""
    data = data_of(5)
    data[2 * SIZE + at] ^= 0x40
    if 12 <= at < 16:
        assert walk_damaged(data) == [0, 2, 4, 6, 8]
        return
    assert walk_damaged(data, known=(SIZE, 3 * SIZE)) == [0, 2, Damage(4, 6, 2 * SIZE), 6, 8]


def test_walk_around_damage_without_an_index_loses_the_rest_after_a_broken_header() -> None:
    data = data_of(3)
    data[SIZE + 16] = 9
    assert walk_damaged(data, end_offset=6) == [0, Damage(2, 6, SIZE)]


def test_walk_around_damage_reports_damage_in_the_last_and_in_the_only_batch() -> None:
    data = data_of(2)
    data[-1] ^= 1
    assert walk_damaged(data, end_offset=4) == [0, Damage(2, 4, SIZE)]
    assert walk_damaged(data[:SIZE], end_offset=2) == [0]
    assert walk_damaged(bytes(200), end_offset=2) == [Damage(0, 2, 0)]
    assert walk_damaged(b"", end_offset=0) == []


def test_walk_around_damage_reports_batches_missing_before_the_end() -> None:
    """The file is cut at the end of a batch, so that all of its bytes are correct."""
    assert walk_damaged(data_of(2), end_offset=10) == [0, 2, Damage(4, 10, 2 * SIZE)]
    assert walk_damaged(b"", end_offset=4) == [Damage(0, 4, 0)]


def test_batch_at_returns_a_complete_batch_or_none() -> None:
    data = data_of(2)
    assert batch_at(read_at_of(data), SIZE, len(data)) is not None
    assert batch_at(read_at_of(data), SIZE, len(data) - 1) is None
    assert batch_at(read_at_of(data), 1, len(data)) is None
    assert batch_at(read_at_of(data), len(data), len(data)) is None


@pytest.mark.parametrize(
    ("data", "known"),
    [
        pytest.param(data_of(2), 0, id="another offset"),
        pytest.param(data_of(2)[:-1], 1, id="torn"),
        pytest.param(batch(2) + batch(2, base_offset=4), 1, id="gap"),
        pytest.param(data_of(1)[:-1] + b"\xff", 1, id="wrong crc"),
        pytest.param(bytes(100), -1, id="zeros"),
    ],
)
def test_require_sound_refuses_damaged_batches(data: bytes, known: int) -> None:
    require_sound(data_of(2), 1)
    require_sound(data_of(2), -1)
    with pytest.raises(CorruptRecordError) as caught:
        require_sound(data, known)
    assert caught.value.offset is None


# -- logs with gaps --------------------------------------------------------------------------------


def gapped(*bases: int) -> bytes:
    return b"".join(batch(2, base_offset=base, body=BODY) for base in bases)


def sound_from(data: bytes, gaps_below: int | None) -> list[int]:
    found = sound_batches(
        read_at_of(data),
        position=0,
        end=len(data),
        next_offset=0,
        check_crc_of_each=True,
        on_progress=lambda size_bytes: None,
        gaps_below=gaps_below,
    )
    return [located.header.base_offset for located in found]


def test_sound_batches_include_gaps_only_with_gaps_below() -> None:
    data = gapped(0, 10, 12, 50)
    assert sound_from(data, None) == [0]
    assert sound_from(data, 52) == [0, 10, 12, 50]


def test_sound_batches_end_at_lower_offsets_and_at_the_limit() -> None:
    assert sound_from(gapped(0, 10, 9), 100) == [0, 10]
    assert sound_from(gapped(0, 10, 50), 51) == [0, 10]


def test_require_sound_accepts_a_first_batch_after_a_gap_with_gaps_below() -> None:
    data = gapped(10, 20)
    require_sound(data, 5, 100)
    require_sound(data, 11, 100)
    for known, gaps_below in [(5, None), (12, 100), (11, None)]:
        with pytest.raises(CorruptRecordError):
            require_sound(data, known, gaps_below)


def test_sent_batches_requires_the_log_end_offset_or_with_gaps_a_later_one() -> None:
    assert [h.base_offset for h in sent_batches(gapped(4, 6), 4, may_have_gaps=False)] == [4, 6]
    assert [h.base_offset for h in sent_batches(gapped(4, 9), 2, may_have_gaps=True)] == [4, 9]
    torn = gapped(4, 6)[:-1]
    assert [h.base_offset for h in sent_batches(torn, 4, may_have_gaps=False)] == [4]
    for data, may_have_gaps in [(gapped(5), False), (gapped(3), True), (gapped(4, 9), False)]:
        with pytest.raises(CorruptRecordError):
            sent_batches(data, 4, may_have_gaps=may_have_gaps)
