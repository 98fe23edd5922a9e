"""``shares``: one fill level for all; nothing is left over while there is free space."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.balance.fair_shares import Band, DirLoad, byte_band, rate_band, shares


@pytest.mark.parametrize(
    ("bands", "amount", "dealt"),
    [
        ([Band(1, 0, 100), Band(1, 0, 100)], 50, [25, 25]),
        ([Band(1, 0, 100), Band(3, 0, 100)], 40, [10, 30]),
        ([Band(1, 0, 10), Band(1, 0, 100)], 50, [10, 40]),
        ([Band(1, 40, 100), Band(1, 0, 100)], 50, [40, 10]),
        ([Band(0, 7, 7), Band(1, 0, 100)], 50, [7, 43]),
        ([Band(1, 0, 10), Band(1, 0, 10)], 50, [10, 10]),
        ([Band(1, 30, 30), Band(1, 30, 30)], 50, [30, 30]),
        ([], 0, []),
    ],
)
def test_fair_shares_reach_one_level_within_their_bands(
    bands: list[Band], amount: float, dealt: list[float]
) -> None:
    assert shares(bands, amount) == pytest.approx(dealt)


@pytest.mark.parametrize(
    ("load", "band"),
    [
        (DirLoad(total_bytes=100, spare_bytes=20), Band(100, 5, 60)),
        (DirLoad(total_bytes=100, spare_bytes=20, takes=False), Band(100, 5, 40)),
        (DirLoad(total_bytes=100, spare_bytes=20, takes=False, gives=False), Band(0, 40, 40)),
        (DirLoad(total_bytes=100, spare_bytes=20, takes=False, is_drained=True), Band(0, 5, 5)),
    ],
)
def test_byte_band_depends_on_state_and_space_of_the_directory(load: DirLoad, band: Band) -> None:
    assert byte_band(load, 40, 5) == band


@pytest.mark.parametrize(
    ("load", "band"),
    [
        (DirLoad(total_bytes=100, spare_bytes=20), Band(1, 5, 90)),
        (DirLoad(total_bytes=900, spare_bytes=20, takes=False), Band(1, 5, 40)),
        (DirLoad(total_bytes=100, spare_bytes=20, takes=False, gives=False), Band(0, 40, 40)),
        (DirLoad(total_bytes=100, spare_bytes=20, takes=False, is_drained=True), Band(0, 5, 5)),
    ],
)
def test_rate_band_depends_on_state_and_space_of_the_directory(load: DirLoad, band: Band) -> None:
    assert rate_band(load, 40, 5, most=90) == band


_bands = st.builds(
    lambda weight, low, more: Band(weight, low, low + more),
    st.integers(0, 5),
    st.integers(0, 100),
    st.integers(0, 1000),
)


@given(st.lists(_bands, min_size=1), st.integers(0, 5000))
def test_fair_shares_distribute_the_amount_as_far_as_bands_allow(
    bands: list[Band], amount: int
) -> None:
    dealt = shares(bands, amount)
    assert all(b.low <= share <= b.high for b, share in zip(bands, dealt, strict=True))
    low = sum(band.low for band in bands)
    high = sum(band.high if band.weight else band.low for band in bands)
    assert sum(dealt) == pytest.approx(min(high, max(low, amount)), rel=1e-6)
