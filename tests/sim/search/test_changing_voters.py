"""A quorum whose voters change under load, while controllers die: its laws hold all the same.

``VOTERS_SEEDS=500 pytest tests/sim/search/test_changing_voters.py`` searches further than
``make test`` does.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import DirectoryId
from kraftjbod.protocol.rpc_messages import FeatureUpdate, RpcRequest, UpdateFeaturesRequest
from kraftjbod.protocol.rpc_quorum_messages import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumReplica,
    RemoveRaftVoterRequest,
)
from kraftjbod.testing.simulation import SimulatedCluster
from kraftjbod.testing.simulation.cluster_view import ClusterView
from kraftjbod.testing.simulation.search.quorum_laws import QuorumLaws
from kraftjbod.testing.simulation.simulated_cluster import SimulatedClient, SimulatedController

SEEDS = int(os.environ.get("VOTERS_SEEDS", "1"))
FIRST_SEED = int(os.environ.get("VOTERS_FIRST_SEED", "0"))
ROUNDS = 4
CONFIG = {"metadata.log.max.record.bytes.between.snapshots": "5000"}
NAME_VOTERS = UpdateFeaturesRequest(
    updates=(FeatureUpdate(name="kraft.version", level=1, upgrade_type=1),)
)


class Operator:
    """Takes voters away, and back in again; it asks until it is done."""

    def __init__(self, client: SimulatedClient, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
        self.rounds = 0

    async def work(self) -> None:
        await self._until_done(NAME_VOTERS)
        every = await self._voters()
        for _ in range(ROUNDS):
            some = self._rng.sample(every, self._rng.choice((1, 1, 2)))
            for voter in some:
                await self._until_done(
                    RemoveRaftVoterRequest(voter_id=voter.node_id, directory_id=_dir(voter)),
                    ErrorCode.VOTER_NOT_FOUND,
                )
                await asyncio.sleep(self._rng.random())
            for voter in some:
                await self._until_done(
                    AddRaftVoterRequest(
                        voter_id=voter.node_id,
                        directory_id=_dir(voter),
                        endpoints=voter.endpoints,
                        ack_when_committed=self._rng.random() < 0.7,
                    ),
                    ErrorCode.DUPLICATE_VOTER,
                )
            self.rounds += 1

    async def _voters(self) -> list[QuorumReplica]:
        found = await self._until_done(DescribeQuorumRequest())
        assert isinstance(found, DescribeQuorumResponse)
        return list(found.voters)

    async def _until_done(self, request: RpcRequest, but: ErrorCode | None = None) -> object:
        """:param but: says that it is so already."""
        while True:
            client = self._client.new_controller_client(timeout_ms=2_000)
            async with client:
                try:
                    return await client.call(request)
                except OperatingError as e:
                    if e.code is but:
                        return None
            await asyncio.sleep(0.1)


def _dir(voter: QuorumReplica) -> DirectoryId:
    assert voter.directory_id is not None
    return voter.directory_id


async def _write(client: SimulatedClient, answered: set[bytes], over: Callable[[], bool]) -> None:
    number = 0
    while not over():
        number += 1
        kafka = client.new_kafka()
        try:
            async with asyncio.timeout(3):
                await create_topic(kafka, f"topic-{number}-", partitions=1, replication_factor=1)
            answered.add(b"topic-%d-" % number)
        except (KraftJbodError, TimeoutError):
            pass
        finally:
            await kafka.close()
        await asyncio.sleep(0.1)


def _strike(cluster: SimulatedCluster, host: SimulatedController, rng: random.Random) -> None:
    """For a while; nobody else meanwhile."""
    for_ms = rng.randint(20, 1_500)
    kind = rng.choice(("kill", "power", "operation", "alone", "one way"))
    others = [one.name for one in cluster.controllers if one is not host]
    if kind in ("alone", "one way"):
        for other in others:
            cluster.network.partition(host.name, other, one_way=kind == "one way")
        cluster.run_for(for_ms)
        for other in others:
            cluster.network.heal(host.name, other)
        return
    if kind == "operation":
        host.at_operation(rng.randint(1, 10), host.power_cut)
        cluster.run_for(for_ms)
        host.spare()
    elif kind == "kill":
        host.kill()
    else:
        host.power_cut()
    cluster.run_for(for_ms)
    if not host.is_up:
        host.start()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_voters_change_while_controllers_die(seed: int) -> None:
    rng = random.Random(seed)
    findings: list[str] = []
    answered: set[bytes] = set()
    with SimulatedCluster(seed, controllers=3, brokers=1, log_dirs=1, config=CONFIG) as cluster:
        laws = QuorumLaws(ClusterView(cluster), found=findings.append)
        cluster.start()
        operator = Operator(cluster.client("operator"), rng)
        judging = cluster.client("judge").begin(laws.run())
        working = cluster.client("operator").begin(operator.work())
        client = cluster.client("writer")
        writing = client.begin(_write(client, answered, working.done))
        while not working.done() and cluster.now_ms < 300_000:
            cluster.run_for(rng.randint(10, 2_000))
            leader = next((host for host in cluster.controllers if host.is_active), None)
            anyone = rng.choice(cluster.controllers)
            _strike(cluster, leader if leader and rng.random() < 0.5 else anyone, rng)
        cluster.run_until(working)
        cluster.run_until(writing)
        cluster.run_for(10_000)
        judging.cancel()
        laws.look()
        laws.judge_answers(answered)
        laws.judge_replays()
        voters = {
            len(driver.voters) for _, driver in ClusterView(cluster).drivers() if driver.leads
        }
        assert voters == {3}
        assert len(answered) > ROUNDS
        assert [*findings, *cluster.bugs] == []
