"""The types of Kafka's messages are those of the schemas that the codec runs on."""

from __future__ import annotations

from tests.tidy.message_stubs import STUBS, stubs


def test_the_stubs_are_written_from_the_schemas() -> None:
    assert STUBS.read_text() == stubs(), "run `make stubs`"
