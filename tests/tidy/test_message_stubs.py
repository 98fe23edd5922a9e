"""Tests that the type stubs of Kafka's messages match the schemas."""

from __future__ import annotations

from tests.tidy.message_stubs import STUBS, stubs


def test_message_stubs_match_the_schemas() -> None:
    assert STUBS.read_text() == stubs(), "run `make stubs`"
