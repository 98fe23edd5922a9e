"""``core/config_model.py``: fields by Kafka's key names."""

from __future__ import annotations

import pytest
from pydantic import Field

from kraftjbod.core.config_model import (
    KeyedModel,
    list_items,
    parse_model,
    split_list,
    unknown_keys,
)
from kraftjbod.core.errors import ConfigError


class Sample(KeyedModel):
    some_bytes: int = Field(default=1, ge=0)


def test_keys_have_dots() -> None:
    sample = parse_model(Sample, {"some.bytes": "7"}, "here")
    assert sample.by_key() == {"some.bytes": 7}
    assert Sample.keys() == {"some.bytes"}
    assert unknown_keys(Sample, {"some.bytes": "1", "b": "", "a": ""}) == ["a", "b"]


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ConfigError, match=r"here: some\.bytes: .*greater than or equal to 0"):
        parse_model(Sample, {"some.bytes": "-1"}, "here")


def test_a_nul_is_refused_where_it_would_become_a_path() -> None:
    with pytest.raises(ConfigError, match=r"here: log\.dirs contains a NUL character"):
        parse_model(Sample, {"log.dirs": "/a\0b"}, "here")


def test_lists_are_comma_separated() -> None:
    assert list_items(" a, b,,c ") == ["a", "b", "c"]
    assert split_list("a,b") == ("a", "b")
    assert split_list(("a",)) == ("a",)
