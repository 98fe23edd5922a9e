"""What a controller is refused to say to another."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from kraftjbod.protocol.rpc_quorum_messages import MAX_MESSAGES, QuorumMessagesRequest

ENVELOPE = {
    "cluster_id": "c",
    "sender_id": 1,
    "sender_directory_id": b"d" * 16,
    "receiver_id": 2,
}


@pytest.mark.parametrize(
    "messages",
    [
        [{"kind": "Unheard", "term": 1}],
        [{"kind": "TimeoutNow", "term": -1}],
        [{"kind": "AppendReply", "term": 1, "durable_offset": -2}],
        [{"kind": "TimeoutNow", "term": 1}] * (MAX_MESSAGES + 1),
    ],
)
def test_nonsense_is_refused_at_the_door(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        QuorumMessagesRequest.model_validate({**ENVELOPE, "messages": messages})
