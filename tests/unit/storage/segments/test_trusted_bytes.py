"""``TrustedBytes`` against a model: the set of trusted mebibytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.storage.segments.trusted_bytes import MAX_RANGES, READ_AHEAD_BYTES, TrustedBytes

MIB = 1024 * 1024
AHEAD = READ_AHEAD_BYTES // MIB
LARGEST = 60

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "truncate", "doubt", "trust"]),
        st.integers(0, LARGEST),
        st.integers(1, 5),
    ),
    max_size=40,
)


def covered(trusted: TrustedBytes, size: int) -> set[int]:
    return {at for at in range(size) if trusted.end_from(at * MIB) >= (at + 1) * MIB}


@given(size=st.integers(0, LARGEST), steps=steps)
def test_trusted_bytes_contain_written_and_verified_bytes_only(
    size: int, steps: list[tuple[str, int, int]]
) -> None:
    trusted, model = TrustedBytes(size * MIB), set[int]()
    for step, begin, length in steps:
        end = min(begin + length, size)
        if step == "append":
            model |= set(range(size, size + length))
            size += length
        elif step == "truncate" and begin <= size:
            size = begin
            trusted.truncate(size * MIB)
            model = {at for at in model if at < size}
        elif step == "doubt":
            trusted.doubt(begin * MIB, length * MIB, size * MIB)
            model -= set(range(begin, begin + length + AHEAD))
        elif step == "trust" and begin < end:
            trusted.trust(begin * MIB, end * MIB)
            model |= set(range(begin, end))
        assert covered(trusted, size) <= model
        assert len(trusted.ranges) <= MAX_RANGES
        if len(trusted.ranges) < MAX_RANGES:
            assert covered(trusted, size) == model
        else:
            model = covered(trusted, size)  # Forgotten ranges have to be verified again.


def test_trusted_bytes_keep_one_end_trusted_while_the_other_end_is_read() -> None:
    trusted = TrustedBytes(0)
    trusted.doubt(0, MIB, 1024 * MIB)
    assert trusted.end_from(0) == 0
    assert trusted.end_from(MIB + READ_AHEAD_BYTES) > 1024 * MIB
    for at in range(2 * MAX_RANGES):
        trusted.doubt((at * 2 + 1) * 32 * MIB, 1, 1024 * MIB)
    assert trusted.end_from(1023 * MIB) > 1024 * MIB
    assert len(trusted.ranges) == MAX_RANGES
