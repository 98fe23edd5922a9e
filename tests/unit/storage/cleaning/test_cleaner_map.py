"""The cleaner's map from key to latest offset, and its memory limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.storage.cleaning.cleaner_map import ENTRY_BYTES, CleanerMap


def test_cleaner_map_returns_the_last_offset_of_a_key() -> None:
    found = CleanerMap(max_bytes=10_000, expected_keys=10)
    assert found.put(b"a", 0)
    assert found.put(b"b", 1)
    assert found.put(b"a", 7)
    assert (found.latest(b"a"), found.latest(b"b"), found.latest(b"c")) == (7, 1, -1)
    assert (found.entries, found.latest_offset) == (2, 7)


def test_cleaner_map_accepts_offset_zero_and_empty_keys() -> None:
    found = CleanerMap(max_bytes=10_000, expected_keys=10)
    assert found.latest(b"") == -1
    assert found.put(b"", 0)
    assert found.latest(b"") == 0


def test_cleaner_map_put_returns_false_for_new_keys_when_full_and_keeps_latest_offset() -> None:
    found = CleanerMap(max_bytes=100 * ENTRY_BYTES, expected_keys=1_000_000)
    taken = 0
    while found.put(b"%d" % taken, taken):
        taken += 1
    assert taken == 90
    assert found.latest_offset == taken - 1
    # A key that is in the map can still be updated.
    assert found.put(b"3", 500)
    assert found.latest(b"3") == 500
    assert all(found.latest(b"%d" % n) == n for n in range(taken) if n != 3)
    assert found.latest(b"%d" % taken) == -1


def test_cleaner_map_record_complete_up_to_never_lowers_the_latest_offset() -> None:
    found = CleanerMap(max_bytes=1000, expected_keys=1)
    found.record_complete_up_to(41)
    found.record_complete_up_to(12)
    assert found.latest_offset == 41


@given(st.lists(st.binary(max_size=3), max_size=300))
def test_cleaner_map_equals_a_dict_for_any_keys(keys: list[bytes]) -> None:
    found, model = CleanerMap(max_bytes=1 << 20, expected_keys=len(keys)), dict[bytes, int]()
    for offset, key in enumerate(keys):
        assert found.put(key, offset)
        model[key] = offset
    assert {key: found.latest(key) for key in model} == model
    assert found.entries == len(model)
