"""``QuorumWiring``: which controllers may send messages in this quorum."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.config import ControllerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, Uuid
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.quorum_wiring import QuorumWiring
from kraftjbod.protocol.rpc_quorum_messages import QuorumMessagesRequest
from kraftjbod.raft.machine.messages import Message, node
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import directory_id, format_dir, open_dir

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


DIRECTORIES = {i: DirectoryId(bytes([i]) * 16) for i in (1, 2, 3)}
STATIC = VoterSet.of_keys(map(node, (1, 2, 3)))
NAMED = VoterSet.of_keys(ReplicaKey(BrokerId(i), directory) for i, directory in DIRECTORIES.items())


class Driver:
    """The attributes that the wiring reads, and the messages that it delivers."""

    seeks_leader = False
    leader: BrokerId | None = None

    def __init__(self, voters: VoterSet) -> None:
        self.voters = voters
        self.received: list[Message] = []

    def receive(self, message: Message) -> None:
        self.received.append(message)


def wiring_with(voters: VoterSet) -> tuple[QuorumWiring, Driver]:
    memory = MemVfs()
    format_dir(memory, "/d1", 1)
    memory.make_dirs("/d1/__cluster_metadata-0")
    config = ControllerConfig.from_properties(CONFIG, source="test", base_dir="/")
    wiring, driver = QuorumWiring(config, Environment(), open_dir(memory), "c"), Driver(voters)
    wiring.attach(driver)  # type: ignore[arg-type]  # the needed part of a driver
    return wiring, driver


async def test_named_quorum_accepts_observers_and_refuses_former_directory() -> None:
    wiring, driver = wiring_with(NAMED)
    said = [{"kind": "Observe", "term": 0}]
    request = QuorumMessagesRequest.model_validate(
        {**SAID, "sender_id": 4, "sender_endpoint": "C://127.0.0.1:4", "messages": said}
    )
    await wiring.receive(request)
    (message,) = driver.received
    assert message.sender == ReplicaKey(BrokerId(4), request.sender_directory_id)
    assert not wiring.speaks_here(request)
    former = request.model_copy(update={"receiver_directory_id": DIRECTORIES[3]})
    with pytest.raises(OperatingError, match="remove the former one from the voters") as refused:
        await wiring.receive(former)
    assert refused.value.code is ErrorCode.INVALID_VOTER_KEY
    await wiring.close()


async def test_directories_exclude_voters_that_speak_like_older_software() -> None:
    wiring, _ = wiring_with(STATIC)
    for endpoint, named in (("", {1}), ("C://127.0.0.1:2", {1, 2}), ("", {1})):
        said = {**SAID, "sender_endpoint": endpoint}
        await wiring.receive(QuorumMessagesRequest.model_validate(said))
        assert set(wiring.directories()) == named, endpoint
    # The voters were named while this controller was away, and another one leads now.
    later = {**said, "sender_id": 4, "receiver_directory_id": wiring.directories()[BrokerId(1)]}
    await wiring.receive(QuorumMessagesRequest.model_validate(later))
    with pytest.raises(OperatingError, match="takes this one for"):
        await wiring.receive(QuorumMessagesRequest.model_validate({**said, "sender_id": 4}))
    await wiring.close()


async def test_static_quorum_identifies_voters_by_directory() -> None:
    """An empty disk would grant votes again that the lost disk had granted: two leaders in a
    term."""
    wiring, driver = wiring_with(STATIC)
    named = {"sender_endpoint": "C://127.0.0.1:2", "receiver_directory_id": directory_id(1)}
    said = {**SAID, "messages": [{"kind": "VoteReply", "term": 3, "granted": True}]}
    voter, empty = {"sender_directory_id": DIRECTORIES[2]}, {"sender_directory_id": DIRECTORIES[3]}
    await wiring.receive(QuorumMessagesRequest.model_validate(said | voter))
    await wiring.receive(QuorumMessagesRequest.model_validate(said | voter | named))
    await wiring.receive(QuorumMessagesRequest.model_validate(said | empty | named))
    senders = [message.sender for message in driver.received]
    assert senders == [node(2), node(2), ReplicaKey(BrokerId(2), DIRECTORIES[3])]
    assert not STATIC.is_majority([node(1), senders[-1]])
    await wiring.close()


async def test_supported_features_are_those_last_sent_by_each_voter() -> None:
    wiring, driver = wiring_with(STATIC)
    own = {BrokerId(1): SUPPORTED_FEATURES}
    assert wiring.supported_features() == {**own, BrokerId(2): {}, BrokerId(3): {}}
    newer = {**SAID, "sender_endpoint": "C://127.0.0.1:2", "sender_features": {"f": (1, 2)}}
    newer |= {"sender_directory_id": DIRECTORIES[2]}
    await wiring.receive(QuorumMessagesRequest.model_validate(newer))
    assert wiring.supported_features() == {**own, BrokerId(2): {"f": (1, 2)}, BrokerId(3): {}}
    driver.voters = NAMED
    assert wiring.supported_features()[BrokerId(2)] == {"f": (1, 2)}
    await wiring.receive(QuorumMessagesRequest.model_validate({**newer, "sender_features": {}}))
    assert wiring.supported_features()[BrokerId(2)] == {}, "it was downgraded"
    driver.voters = VoterSet.of_keys([ReplicaKey(BrokerId(1), DIRECTORIES[1])])
    assert wiring.supported_features() == own
    await wiring.close()


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("cluster_id", "another", ErrorCode.INCONSISTENT_CLUSTER_ID),
        ("sender_id", 4, ErrorCode.INVALID_VOTER_KEY),
        ("sender_id", 1, ErrorCode.INVALID_VOTER_KEY),
        ("receiver_id", 3, ErrorCode.INVALID_VOTER_KEY),
    ],
)
async def test_message_of_wrong_cluster_sender_or_receiver_is_refused(
    field: str, value: Any, code: ErrorCode
) -> None:
    wiring, _ = wiring_with(STATIC)
    request = QuorumMessagesRequest.model_validate({**SAID, field: value})
    assert wiring.speaks_here(request) == (field == "receiver_id")
    with pytest.raises(OperatingError) as refused:
        await wiring.receive(request)
    assert refused.value.code is code
    with capture_logs() as events:
        for _ in range(2):
            wiring.note_refusal(BrokerId(2), refused.value)
    assert [event["event"] for event in events] == ["controller_refused_by_peer"]
    await wiring.close()


async def test_note_refusal_keeps_the_refusal_of_the_leader_until_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wiring, driver = wiring_with(STATIC)
    driver.leader = BrokerId(2)
    refusal = OperatingError("another disk", code=ErrorCode.INVALID_VOTER_KEY)
    with capture_logs():
        wiring.note_refusal(BrokerId(3), refusal)
        assert wiring.refusal is None
        wiring.note_refusal(BrokerId(2), refusal)
    assert wiring.refusal == "another disk"
    monkeypatch.setattr("kraftjbod.daemon.wiring.quorum_wiring.REFUSAL_STANDS_MS", 0)
    assert wiring.refusal is None, "the refusal has expired"
    await wiring.close()


async def test_controller_of_another_metadata_log_is_refused_and_logged_at_intervals() -> None:
    """The other controller was formatted with --standalone by mistake, and leads its own quorum."""
    wiring, driver = wiring_with(NAMED)
    ours, other = Uuid(b"o" * 16), Uuid(b"x" * 16)
    said = {**SAID, "messages": [{"kind": "Observe", "term": 0}]}
    foreign = QuorumMessagesRequest.model_validate({**said, "metadata_log_id": other})
    await wiring.receive(foreign)
    assert len(driver.received) == 1, "no committed entry names this log yet"
    wiring.note_log_id(ours)
    with capture_logs() as events:
        for _ in range(2):
            with pytest.raises(OperatingError, match="formatted as a separate quorum") as refused:
                await wiring.receive(foreign)
            assert refused.value.code is ErrorCode.FOREIGN_METADATA
    assert [event["event"] for event in events] == ["controller_of_another_log"]
    for known in (ours, None):
        await wiring.receive(foreign.model_copy(update={"metadata_log_id": known}))
    assert len(driver.received) == 3
    await wiring.close()
