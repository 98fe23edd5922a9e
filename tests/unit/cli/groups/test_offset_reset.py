"""Parsing of the arguments and files of ``--reset-offsets``, and the resulting offsets."""

from __future__ import annotations

import pytest

from kraftjbod.cli.groups.offset_reset import (
    Bounds,
    OffsetResetError,
    export,
    parse_duration_ms,
    parse_file,
    parse_instant_ms,
    parse_scope,
    shifted,
)
from kraftjbod.core.ids import TopicPartition

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("text", "scope"), [("t", ("t", None)), ("t:0", ("t", (0,))), ("a.b:2,0", ("a.b", (2, 0)))]
)
def test_parse_scope_accepts_topic_with_optional_partitions(text: str, scope: object) -> None:
    assert parse_scope(text) == scope


@pytest.mark.parametrize("text", ["t:", "t:a", ":1", "t:1,", "t:-1"])
def test_parse_scope_rejects_malformed_text(text: str) -> None:
    with pytest.raises(OffsetResetError, match="write topic"):
        parse_scope(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1DT0.5S", 86_400_500),
        ("pt10s", 10_000),
        ("-PT1S", -1_000),
    ],
)
def test_parse_duration_returns_milliseconds_of_iso_duration(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "1H", "P1H", "PT1X"])
def test_parse_duration_rejects_malformed_text(text: str) -> None:
    with pytest.raises(OffsetResetError, match="PnDTnHnMnS"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    "text", ["1970-01-01T00:00:01.500", "1970-01-01T00:00:01.500Z", "1970-01-01T01:00:01.500+01:00"]
)
def test_parse_instant_accepts_time_zones_and_rejects_other_text(text: str) -> None:
    assert parse_instant_ms(text) == 1_500
    with pytest.raises(OffsetResetError):
        parse_instant_ms("yesterday")


def test_parse_file_reads_exported_offsets_of_requested_groups() -> None:
    one = {"g": {ZERO: 4, ONE: 0}}
    text = export(one, has_several_groups=False)
    assert text == "t,0,4\nt,1,0\n"
    assert parse_file(text, ["g"]) == one
    text = export(one, has_several_groups=True)
    assert parse_file(text, ["g", "h"]) == one, "the other group was refused"
    two = {**one, "h": {ONE: 7}}
    text = export(two, has_several_groups=True)
    assert parse_file(text, ["g", "h"]) == two
    assert parse_file(text, ["h", "i"]) == {"h": {ONE: 7}}, "others were not asked for"


@pytest.mark.parametrize("line", ["t,0", "t,a,1", "t,0,-1", ",0,1", "g,h,t,0,1"])
def test_parse_file_names_line_of_malformed_entry(line: str) -> None:
    with pytest.raises(OffsetResetError, match="line 2"):
        parse_file(f"t,0,1\n{line}\n", ["g"])


def test_shifted_offsets_are_clamped_to_the_log() -> None:
    bounds = {ZERO: Bounds(earliest=5, latest=10), ONE: Bounds(earliest=0, latest=3)}
    committed = {ZERO: 8, ONE: 2}
    assert shifted(committed, [ZERO, ONE], 1, bounds) == {ZERO: 9, ONE: 3}
    assert shifted(committed, [ZERO, ONE], -9, bounds) == {ZERO: 5, ONE: 0}
    with pytest.raises(OffsetResetError, match="Cannot shift offset for partition t-1"):
        shifted({ZERO: 8}, [ZERO, ONE], 1, bounds)
