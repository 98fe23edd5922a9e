"""Ids, and Kafka's text form of a uuid."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import InvalidUuidText
from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    DirectoryId,
    TopicId,
    TopicPartition,
    Uuid,
    is_broker_id,
)


@given(st.binary(min_size=16, max_size=16))
def test_uuid_text_round_trip(raw: bytes) -> None:
    text = str(Uuid(raw))
    assert len(text) == 22
    assert Uuid.parse(text) == raw
    assert Uuid.parse(text + "==") == raw


@pytest.mark.parametrize("text", ["", "short", "A" * 23, "A" * 21 + "!", "ÄÖÜ" * 8])
def test_parse_uuid_rejects_malformed_text(text: str) -> None:
    with pytest.raises(InvalidUuidText, match="not a uuid"):
        DirectoryId.parse(text)


def test_uuid_rejects_other_lengths() -> None:
    with pytest.raises(InvalidUuidText, match="16 bytes, got 3"):
        TopicId(b"abc")


def test_reserved_directory_ids_have_numbers_of_kip_858() -> None:
    """KIP-858, "Reserved UUIDs": (0,0), (0,1) and (0,2); the first hundred are never drawn."""
    assert [int.from_bytes(i, "big") for i in (UNASSIGNED_DIR, LOST_DIR, MIGRATING_DIR)] == [
        0,
        1,
        2,
    ]
    assert DirectoryId((99).to_bytes(16, "big")).is_reserved
    assert not DirectoryId((100).to_bytes(16, "big")).is_reserved


@given(st.randoms(use_true_random=False))
def test_random_ids_are_uuids_of_version_4_without_a_dash(random: object) -> None:
    drawn = DirectoryId.random(random.randbytes)  # type: ignore[attr-defined]
    assert uuid.UUID(bytes=bytes(drawn)).version == 4
    assert not drawn.is_reserved
    assert "-" not in str(drawn)


def test_random_id_with_dash_is_drawn_again() -> None:
    dashed = bytes([0xFB]) * 16
    good = bytes(range(16))
    draws = iter([dashed, good])
    assert "-" in str(Uuid(dashed))
    assert "-" not in str(Uuid.random(lambda _size: next(draws)))


def test_repr_of_id_shows_class_and_text() -> None:
    assert repr(LOST_DIR) == "DirectoryId('AAAAAAAAAAAAAAAAAAAAAQ')"
    assert str(TopicPartition("t", 3)) == "t-3"


def test_is_broker_id_accepts_canonical_decimal_only() -> None:
    assert [is_broker_id(text) for text in ("0", "7", str(2**31 - 1))] == [True] * 3
    wrong = ("", "-1", "+1", "01", "1 ", "\u0661", str(2**31), "9" * 5_000)
    assert [is_broker_id(text) for text in wrong] == [False] * len(wrong)


def test_directory_id_reference_round_trip() -> None:
    directory = DirectoryId((100).to_bytes(16, "big"))
    assert DirectoryId.from_reference(directory.reference) == directory
    assert directory.reference == f"dirid:{directory}"
    assert DirectoryId.from_reference("/dirid:x") is None
    assert DirectoryId.from_reference("any") is None
    with pytest.raises(InvalidUuidText):
        DirectoryId.from_reference("dirid:x")
