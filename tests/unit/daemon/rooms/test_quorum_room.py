"""Who may speak as a controller of this quorum."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.rooms.quorum_room import QuorumRoom
from kraftjbod.protocol.rpc_quorum_messages import QuorumMessagesRequest
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir, open_dir

CONFIG = {
    "process.roles": "controller",
    "node.id": "1",
    "listeners": "CONTROLLER://127.0.0.1:1",
    "controller.quorum.voters": "1@127.0.0.1:1,2@127.0.0.1:2,3@127.0.0.1:3",
}
SAID = {
    "cluster_id": "c",
    "sender_id": 2,
    "sender_directory_id": b"d" * 16,
    "receiver_id": 1,
    "messages": [],
}


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("cluster_id", "another", ErrorCode.INCONSISTENT_CLUSTER_ID),
        ("sender_id", 4, ErrorCode.INVALID_VOTER_KEY),
        ("sender_id", 1, ErrorCode.INVALID_VOTER_KEY),
        ("receiver_id", 3, ErrorCode.INVALID_VOTER_KEY),
    ],
)
async def test_a_stranger_is_refused(field: str, value: Any, code: ErrorCode) -> None:
    memory = MemVfs()
    format_dir(memory, "/d1", 1)
    config = ControllerConfig.from_properties(CONFIG, source="test", base_dir="/")
    room = QuorumRoom(config, Environment(), open_dir(memory), "c")
    request = QuorumMessagesRequest.model_validate({**SAID, field: value})
    assert room.speaks_here(request) == (field == "receiver_id")
    with pytest.raises(OperatingError) as refused:
        await room.receive(request)
    assert refused.value.code is code
    with capture_logs() as events:
        for _ in range(2):
            room._refused(BrokerId(2), refused.value)
    assert [event["event"] for event in events] == ["controller_refused_by_peer"]
    await room.close()
