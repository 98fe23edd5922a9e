"""``LineReader`` turns lines into records by the rules of Kafka's LineMessageReader."""

from __future__ import annotations

import pytest

from kraftjbod.cli.console.line_reader import LineReader, MalformedLineError
from kraftjbod.core.errors import ConfigError
from kraftjbod.protocol.records import Record

BOTH = {"parse.key": "true", "parse.headers": " TRUE "}
ROWS = [
    # Properties, a line, and its record or the error message.
    ({}, b"k\tv", Record(value=b"k\tv")),
    ({"parse.key": "true"}, b"k\tv\tw", Record(key=b"k", value=b"v\tw")),
    (BOTH, b"a:1,b:2\tk\tv", Record(key=b"k", value=b"v", headers=(("a", b"1"), ("b", b"2")))),
    ({"parse.headers": "true"}, b"a:1:2\tv", Record(value=b"v", headers=(("a", b"1:2"),))),
    ({"parse.headers": "true"}, b"a:1,,\tv", Record(value=b"v", headers=(("a", b"1"),))),
    (
        {**BOTH, "null.marker": "-", "headers.separator": ";"},
        b"a:-;b:\t-\t-",
        Record(headers=(("a", None), ("b", b""))),
    ),
    ({**BOTH, "null.marker": "-"}, b"-\tk\t-", Record(key=b"k")),
    ({"parse.key": "true", "ignore.error": "true"}, b"v", Record(value=b"v")),
    (
        {"parse.headers": "true", "ignore.error": "true"},
        b"a\tv",
        Record(value=b"v", headers=(("a", None),)),
    ),
    ({"parse.key": "true"}, b"v", "No key separator found on line number 7: 'v'"),
    ({"parse.headers": "true"}, b"v", "No headers delimiter found on line number 7: 'v'"),
    (
        {"parse.headers": "true"},
        b"a\tv",
        "No header key separator found in pair 'a' on line number 7",
    ),
    (
        {"parse.headers": "true", "null.marker": "-"},
        b"-:1\tv",
        "Header keys should not be equal to the null marker '-' as they can't be null",
    ),
]
REFUSED = [
    ({"parse.keys": "true"}, "unknown: parse.keys"),
    ({"headers.delimiter": ","}, "headers.delimiter and headers.separator may not be equal"),
    ({"null.marker": ":", "key.separator": ":"}, "null.marker and key.separator may not be equal"),
    ({"key.separator": ""}, "key.separator may not be empty"),
]


@pytest.mark.parametrize(("properties", "line", "expected"), ROWS)
def test_line_reader_parses_line_or_reports_reason(
    properties: dict[str, str], line: bytes, expected: Record | str
) -> None:
    reader = LineReader.from_properties(properties)
    if isinstance(expected, Record):
        assert reader.record(line, 7, 0) == expected
        return
    with pytest.raises(MalformedLineError) as raised:
        reader.record(line, 7, 0)
    assert str(raised.value) == expected


@pytest.mark.parametrize(("properties", "why"), REFUSED)
def test_line_reader_rejects_unknown_and_conflicting_properties(
    properties: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        LineReader.from_properties(properties)
    assert str(raised.value) == why
