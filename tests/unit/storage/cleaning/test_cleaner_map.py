"""The map of latest offsets: what was put is found, and no more memory than was given is used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.storage.cleaning.cleaner_map import ENTRY_BYTES, CleanerMap


def test_the_last_offset_of_a_key_is_kept() -> None:
    found = CleanerMap(max_bytes=10_000, expected_keys=10)
    assert found.put(b"a", 0)
    assert found.put(b"b", 1)
    assert found.put(b"a", 7)
    assert (found.latest(b"a"), found.latest(b"b"), found.latest(b"c")) == (7, 1, -1)
    assert (found.entries, found.latest_offset) == (2, 7)


def test_offset_zero_and_empty_keys_are_like_any_other() -> None:
    found = CleanerMap(max_bytes=10_000, expected_keys=10)
    assert found.latest(b"") == -1
    assert found.put(b"", 0)
    assert found.latest(b"") == 0


def test_a_full_map_takes_no_new_key_and_says_up_to_where_it_knows() -> None:
    found = CleanerMap(max_bytes=100 * ENTRY_BYTES, expected_keys=1_000_000)
    taken = 0
    while found.put(b"%d" % taken, taken):
        taken += 1
    assert taken == 90
    assert found.latest_offset == taken - 1
    # A key that it has is no new one.
    assert found.put(b"3", 500)
    assert found.latest(b"3") == 500
    assert all(found.latest(b"%d" % n) == n for n in range(taken) if n != 3)
    assert found.latest(b"%d" % taken) == -1


def test_what_holds_no_keys_is_passed_over() -> None:
    found = CleanerMap(max_bytes=1000, expected_keys=1)
    found.pass_over(41)
    found.pass_over(12)
    assert found.latest_offset == 41


@given(st.lists(st.binary(max_size=3), max_size=300))
def test_it_is_what_a_dict_would_be(keys: list[bytes]) -> None:
    found, model = CleanerMap(max_bytes=1 << 20, expected_keys=len(keys)), dict[bytes, int]()
    for offset, key in enumerate(keys):
        assert found.put(key, offset)
        model[key] = offset
    assert {key: found.latest(key) for key in model} == model
    assert found.entries == len(model)
