"""Quorum messages and FetchMetadata requests: refused values and defaults."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kraftjbod.protocol.rpc_quorum_messages import (
    MAX_MESSAGES,
    FetchMetadataRequest,
    FetchMetadataResponse,
    QuorumMessagesRequest,
)

ENVELOPE = {
    "cluster_id": "c",
    "sender_id": 1,
    "sender_directory_id": b"d" * 16,
    "receiver_id": 2,
}
POLL = {"broker_id": 1, "fetch_offset": 0, "max_wait_ms": 10, "max_bytes": 1}


@pytest.mark.parametrize(
    "messages",
    [
        [{"kind": "Unheard", "term": 1}],
        [{"kind": "TimeoutNow", "term": -1}],
        [{"kind": "AppendReply", "term": 1, "durable_offset": -2}],
        [{"kind": "TimeoutNow", "term": 1}] * (MAX_MESSAGES + 1),
    ],
)
def test_quorum_messages_request_refuses_unknown_and_invalid_messages(
    messages: list[dict[str, Any]],
) -> None:
    with pytest.raises(ValidationError):
        QuorumMessagesRequest.model_validate({**ENVELOPE, "messages": messages})


@pytest.mark.parametrize(
    "wrong", [{"max_wait_ms": 60_001}, {"max_bytes": 0}, {"snapshot_position": -1}]
)
def test_fetch_metadata_request_refuses_values_beyond_limits(wrong: dict[str, Any]) -> None:
    FetchMetadataRequest.model_validate(POLL)
    with pytest.raises(ValidationError):
        FetchMetadataRequest.model_validate({**POLL, **wrong})


def test_fetch_metadata_request_without_required_field_is_refused() -> None:
    for name in POLL:
        with pytest.raises(ValidationError, match=name):
            FetchMetadataRequest.model_validate({key: POLL[key] for key in POLL if key != name})


def test_fetch_metadata_defaults_are_those_of_older_software() -> None:
    asked = FetchMetadataRequest.model_validate(POLL)
    assert (asked.applied_metadata_offset, asked.applied_metadata_epoch) == (None, None)
    answer = FetchMetadataResponse(high_watermark=-1)
    assert answer.is_active
    assert (answer.entries, answer.snapshot_offset, answer.snapshot_epoch) == ((), -1, -1)
