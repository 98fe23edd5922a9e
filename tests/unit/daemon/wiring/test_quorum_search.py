"""``QuorumSearch``: a controller without a vote looks for the leader at its bootstrap servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.cli.clients.cluster_admin import UpgradeType, create_topic, update_features
from kraftjbod.core.errors import ErrorCode, NotControllerError, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.metadata_version import KRAFT_VERSION
from kraftjbod.daemon.wiring.quorum_search import QuorumSearch
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import DescribeQuorumResponseRpc, QuorumReplica
from kraftjbod.raft.machine.voter_set import ReplicaKey
from kraftjbod.testing.simulation import SimulatedCluster
from tests.unit.broker.scripted_controller import ScriptedController, serving

VOTER = ReplicaKey(BrokerId(3), DirectoryId(bytes(15) + b"\x03"))


class Driver:
    def __init__(self) -> None:
        self.seeks_leader = True
        self.asked: asyncio.Future[list[ReplicaKey]] = asyncio.get_running_loop().create_future()

    def ask_for_log(self, of: Iterable[ReplicaKey]) -> None:
        if not self.asked.done():
            self.asked.set_result(list(of))


async def test_quorum_search_logs_once_that_its_host_is_not_allowed() -> None:
    asked = asyncio.Semaphore(0)

    def refuse(_: RpcRequest) -> RpcResponse:
        asked.release()
        raise OperatingError("not from here", code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    controller = ScriptedController(refuse)
    async with serving(controller):
        search = QuorumSearch(
            addresses=[("127.0.0.1", controller.server.port)],
            interval_ms=1,
            timeout_ms=10_000,
            backoff=ExponentialBackoff(initial_ms=1, max_ms=1, random_unit=lambda: 0.5),
            found=lambda _: None,
        )
        with capture_logs() as logs:
            search.begin_search(Driver())  # type: ignore[arg-type]  # the needed part of a driver
            for _ in range(3):
                await asked.acquire()
            await search.stop()
    said = [event for event in logs if event["log_level"] == "warning"]
    assert [(event["event"], event["reason"]) for event in said] == [
        ("quorum_search_refused", "not from here")
    ]


async def test_quorum_search_finds_voters_through_an_address_that_answers() -> None:
    def refuse(_: RpcRequest) -> RpcResponse:
        raise NotControllerError("starting")

    def answer(_: RpcRequest) -> RpcResponse:
        voter = QuorumReplica(
            node_id=VOTER.node_id, directory_id=VOTER.directory_id, endpoints=("C://c3:9090",)
        )
        return DescribeQuorumResponseRpc(node_id=BrokerId(1), cluster_id="c", voters=(voter,))

    first, second = ScriptedController(refuse), ScriptedController(answer)
    found_voters: dict[ReplicaKey, str] = {}
    async with serving(first, second):
        search = QuorumSearch(
            addresses=[("127.0.0.1", one.server.port) for one in (first, second)],
            interval_ms=1,
            timeout_ms=10_000,
            backoff=ExponentialBackoff(initial_ms=1, max_ms=1, random_unit=lambda: 0.5),
            found=found_voters.update,
        )
        driver = Driver()
        search.begin_search(driver)  # type: ignore[arg-type]  # the needed part of a driver
        assert await driver.asked == [VOTER]
        assert found_voters == {VOTER: "C://c3:9090"}
        await search.stop()


async def test_unexpected_error_of_quorum_search_reaches_the_event_loop() -> None:
    class Broken:
        @property
        def seeks_leader(self) -> bool:
            raise ZeroDivisionError

    seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.put_nowait(context))
    search = QuorumSearch(
        addresses=[],
        interval_ms=1,
        timeout_ms=10_000,
        backoff=ExponentialBackoff(initial_ms=1, max_ms=1, random_unit=lambda: 0.5),
        found=lambda _: None,
    )
    search.begin_search(Broken())  # type: ignore[arg-type]  # the needed part of a driver
    assert isinstance((await seen.get())["exception"], ZeroDivisionError)
    await search.stop()


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_voter_that_looks_for_a_leader_does_not_follow_a_standalone_controller(
    is_restarted: bool,
) -> None:
    """One of three voters got a new disk, which was formatted with --standalone by mistake."""
    with SimulatedCluster(5, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        client = cluster.client("client")
        upgrade = {KRAFT_VERSION: 1}
        client.run(update_features(client.kafka, upgrade, upgrade_type=UpgradeType.UPGRADE))
        client.run(create_topic(client.kafka, "t", partitions=1))
        cluster.run_for(3_000)
        leader = next(host for host in cluster.controllers if host.is_active)
        follower, mistaken = (host for host in cluster.controllers if host is not leader)
        mistaken.kill()
        cluster.replace_metadata_disk(mistaken, is_standalone=True)
        mistaken.start()
        cluster.wait_for(lambda: mistaken.is_active, "it leads its own quorum")
        leader.kill()
        if is_restarted:
            follower.kill()
            follower.start()
        cluster.run_for(10_000)
        leader.start()
        real = (leader, follower)
        cluster.wait_for(lambda: any(host.is_active for host in real), "a real voter leads")
        cluster.run_for(3_000)
        for host in real:
            assert host.state is not None
            assert "t" in host.state.topic_ids
        assert cluster.bugs == []


def test_brokers_forward_no_requests_to_standalone_controller() -> None:
    """The active controller got a new disk, formatted with --standalone, at the same address."""
    with SimulatedCluster(5, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        client = cluster.client("client")
        upgrade = {KRAFT_VERSION: 1}
        client.run(update_features(client.kafka, upgrade, upgrade_type=UpgradeType.UPGRADE))
        cluster.run_for(3_000)
        mistaken = next(host for host in cluster.controllers if host.is_active)
        real = [host for host in cluster.controllers if host is not mistaken]
        mistaken.kill()
        cluster.replace_metadata_disk(mistaken, is_standalone=True)
        mistaken.start()
        cluster.wait_for(lambda: mistaken.is_active, "it leads its own quorum")
        for number in range(5):
            client.run(create_topic(client.kafka, f"t{number}", partitions=1))
        cluster.wait_for(lambda: any(host.is_active for host in real), "a real voter leads")
        cluster.run_for(3_000)
        for host in real:
            assert host.state is not None
            assert {f"t{number}" for number in range(5)} <= set(host.state.topic_ids)
        assert mistaken.state is not None and not mistaken.state.topics
        assert cluster.bugs == []
