"""Scans over record bytes: results, refusals, and the agreement of both forms."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.protocol import byte_scans, record_scans
from kraftjbod.protocol.record_batch import HEADER_BYTES
from kraftjbod.protocol.records import Record, build_batch, encode_varint
from tests.each_case import each_case

COMPILED = record_scans.compiled_form()
FORMS = [byte_scans] if COMPILED is None else [byte_scans, COMPILED]
LEAST, MOST = -(2**63), 2**63 - 1

each_form = pytest.mark.parametrize("scans", FORMS, ids=lambda form: form.__name__)


def body_of(records: list[Record]) -> bytes:
    return build_batch(records)[HEADER_BYTES:]


def record(
    *,
    timestamp: bytes = b"\0",
    offset: bytes = b"\0",
    key: bytes = b"\x01",
    value: bytes = b"\x01",
    headers: bytes = b"\0",
    extra: bytes = b"",
) -> bytes:
    """Build one record from its encoded parts."""
    content = b"\0" + timestamp + offset + key + value + headers + extra
    return encode_varint(len(content)) + content


def check(scans: ModuleType, body: bytes, count: int = 1) -> tuple[int, int, int]:
    found: tuple[int, int, int] = scans.check_records(body, count, LEAST, MOST, 0)
    return found


RECORDS = [
    Record(key=b"a", value=b"1", timestamp_ms=1000),
    Record(
        key=b"b", value=None, timestamp_ms=10**12, headers=(("h", b"v"), ("n", None), ("", b""))
    ),
    Record(key=None, value=b"3" * 300, timestamp_ms=900),
    Record(key=b"", value=b"", timestamp_ms=5000),
]


@each_form
def test_check_records_summarizes_valid_records(scans: ModuleType) -> None:
    body = body_of(RECORDS)
    assert check(scans, body, 4) == (10**12 - 1000, 1, 0)
    # Two of the four deltas are out of this range, and one of them is exempt.
    assert scans.check_records(body, 4, 0, 4000, -100) == (10**12 - 1000, 1, 1)
    assert check(scans, b"", 0) == (LEAST, 0, 0)


@each_form
def test_find_records_continues_slice_by_slice(scans: ModuleType) -> None:
    body = body_of(RECORDS)
    whole = scans.find_records(body, 0, 4)
    assert [one[4:] for one in whole] == [
        (0, 0, b"a", True),
        (10**12 - 1000, 1, b"b", False),
        (-100, 2, None, True),
        (4000, 3, b"", True),
    ]
    assert scans.find_records(body, whole[1][1], 2) == whole[2:]
    assert b"".join(body[one[0] : one[1]] for one in whole) == body


@each_form
def test_find_timestamp_continues_slice_by_slice(scans: ModuleType) -> None:
    body = body_of(RECORDS)
    behind, offset_delta, delta = scans.find_timestamp(body, 0, 4, 1, 0)
    assert (offset_delta, delta) == (1, 10**12 - 1000)
    assert scans.find_timestamp(body, behind, 2, 1, 0)[1:] == (3, 4000)
    assert scans.find_timestamp(body, 0, 4, 1, 2)[1:] == (3, 4000)
    assert scans.find_timestamp(body, 0, 1, 1, 0)[1:] == (-1, 0)
    assert scans.find_timestamp(body, 0, 4, 10**12, 0) == (len(body), -1, 0)


BAD_BODIES = {
    "an empty body, and 2^31-1 records claimed": (b"", 2**31 - 1, "cannot hold"),
    "a count below zero": (b"", -1, "cannot hold"),
    "one record of two": (record() + bytes(7), 2, "too many|claims|cut off"),
    "a record behind the last": (record() + record(), 1, "left over"),
    "a length beyond the body": (b"\x7f" + bytes(20), 1, "claims"),
    "a length below zero": (b"\x01" + bytes(20), 1, "claims"),
    "an offset delta of 1 first": (record(offset=b"\x02"), 1, "offset delta 1"),
    "an offset delta twice": (record() + record(), 2, "offset delta 0"),
    "an offset delta of 2^66": (record(offset=b"\x80" * 9 + b"\x20"), 1, "does not fit 5"),
    "an offset delta of 2^32": (record(offset=encode_varint(2**32)), 1, "does not fit 5"),
    "a timestamp delta of 2^63": (record(timestamp=encode_varint(2**63)), 1, "does not fit 10"),
    "a timestamp of eleven bytes": (record(timestamp=b"\xff" * 11), 1, "does not fit 10"),
    "a key beyond its record": (record(key=b"\x10"), 1, "claims 8 bytes"),
    "a value of -2 bytes": (record(value=b"\x03"), 1, "claims -2 bytes"),
    "a value that takes the headers": (record(value=b"\x02"), 1, "cut off"),
    "headers below zero": (record(headers=b"\x01"), 1, "-1 headers"),
    "headers that are not there": (record(headers=b"\xfe\xff\xff\xff\x0f"), 1, "headers"),
    "a header without a name": (record(headers=b"\x02\x01\x01"), 1, "no name"),
    "bytes behind the headers": (record(extra=b"!"), 1, "1 bytes too many"),
    "a varint that the record ends in": (record(headers=b"\x80"), 1, "cut off"),
}


@each_form
@pytest.mark.parametrize("case", BAD_BODIES)
def test_check_records_names_defect_of_malformed_body(scans: ModuleType, case: str) -> None:
    body, count, reason = BAD_BODIES[case]
    with pytest.raises(CorruptRecordError, match=reason):
        check(scans, body, count)


@each_form
def test_check_records_accepts_largest_and_nonminimal_varints(scans: ModuleType) -> None:
    for delta in (LEAST, MOST, 2**62, -(2**62) - 1):
        assert check(scans, record(timestamp=encode_varint(delta)))[0] == delta
    # A varint may be longer than necessary.
    assert check(scans, record(timestamp=b"\x82\x80\x00"))[0] == 1


def outcome(scan: Callable[..., Any], *given: object) -> Any:
    try:
        return scan(*given)
    except CorruptRecordError as e:
        return str(e)


def bodies(seed: int) -> list[tuple[bytes, int]]:
    """Return valid, mutated and garbage bodies, each with a claimed number of records."""
    dice = random.Random(seed)
    found = []
    for _ in range(300):
        count = dice.randrange(1, 6)
        records = [
            Record(
                key=dice.choice([None, b"", dice.randbytes(dice.randrange(80))]),
                value=dice.choice([None, b"", dice.randbytes(dice.randrange(300))]),
                timestamp_ms=dice.choice([0, 1, dice.randrange(-(2**40), 2**62)]),
                headers=tuple(("h" * dice.randrange(3), b"v") for _ in range(dice.randrange(3))),
            )
            for _ in range(count)
        ]
        body = bytearray(body_of(records))
        found.append((bytes(body), count))
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(body))
            mutation = dice.randrange(4)
            if mutation == 0:
                body[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            elif mutation == 1:
                body[at : at + 1] = dice.choice([b"\x80", b"\xff" * 9, b"\xff" * 4 + b"\x0f"])
            elif mutation == 2:
                del body[at:]
            else:
                body += dice.randbytes(dice.randrange(9))
            if not body:
                break
        found.append((bytes(body), count))
        found.append((dice.randbytes(dice.randrange(40)), dice.choice([0, 1, 2, 2**31 - 1])))
    return found


@each_case("seed", range(5))
def test_compiled_and_interpreted_scans_agree(seed: int) -> None:
    accepted = 0
    for body, count in bodies(seed):
        limit = min(count, 10)
        earliest, latest = -(2**30), 2**30
        found = []
        for scans in FORMS:
            checked = outcome(scans.check_records, body, count, earliest, latest, 7)
            records = outcome(scans.find_records, body, 0, limit)
            young = outcome(scans.find_timestamp, body, 0, limit, 1, 1)
            found.append((checked, records, young))
        assert found[0] == found[-1], (seed, body, count)
        checked, records, young = found[0]
        if isinstance(checked, tuple):
            # The other scans read a valid body as well.
            accepted += 1
            assert [one[5] for one in records] == list(range(limit))
            assert checked[0] == max((one[4] for one in records), default=LEAST)
            assert checked[1] == sum(one[6] is None for one in records)
            first = next(((o[5], o[4]) for o in records if o[4] >= 1 and o[5] >= 1), (-1, 0))
            assert young[1:] == first
    assert accepted >= 300
