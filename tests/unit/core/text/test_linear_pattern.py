"""``LinearPattern``: regular expressions of clients, with Python's results in linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.text.linear_pattern import LinearPattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", "^", "$", "(?i:B)", "", r"\w"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "+?"])).map(
            lambda two: f"({two[0]}){two[1]}"
        ),
    ),
    max_leaves=8,
)

NONE = ["(", "[z-a]", "a**", r"(a)\1", "(?=a)a", "(?<!b)a", "a{1001}", "((a{99}){99}){9}"]


@given(PATTERNS, st.text("abB1\n", max_size=6))
def test_linear_pattern_matches_like_python(pattern: str, text: str) -> None:
    # In Python, `$` also matches before a trailing newline, as in Java but not in RE2.
    expected = re.fullmatch(pattern.replace("$", r"\Z"), text) is not None
    assert LinearPattern(pattern).fits(text) == expected


def test_linear_pattern_decides_nested_repetitions_of_long_text() -> None:
    assert not LinearPattern("(a+)+b").fits("a" * 5_000)
    assert LinearPattern("(a|a?)+").fits("a" * 5_000)


@pytest.mark.parametrize("pattern", [*NONE, "a" * 10_001, "(" * 9_999])
def test_linear_pattern_refuses_malformed_and_too_large_patterns(pattern: str) -> None:
    with pytest.raises(OperatingError) as caught:
        LinearPattern(pattern)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
