"""``parse_properties`` and ``format_properties``: Java's properties format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.properties import format_properties, parse_properties


def test_parse_properties_accepts_java_syntax() -> None:
    text = "# comment\na=1\nb : 2\nc 3\nlong=one,\\\n  two\nu=\\u0041\na=4\n"
    assert parse_properties(text, "x") == {
        "a": "4",
        "b": "2",
        "c": "3",
        "long": "one,two",
        "u": "A",
    }


def test_parse_properties_names_source_of_malformed_escape() -> None:
    with pytest.raises(ConfigError, match=r"conf/x\.properties"):
        parse_properties("a=\\u00zz", "conf/x.properties")


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_format_properties_round_trip_is_sorted(values: dict[str, str]) -> None:
    assert list(parse_properties(format_properties(values, "c"), "x").items()) == sorted(
        values.items()
    )
