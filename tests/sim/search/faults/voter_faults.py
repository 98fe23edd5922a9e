"""``VoterFaults``: controllers are removed from the voters and added again.

* An operator sends the requests of ``kraftjbod-metadata-quorum`` to brokers until they succeed.
* The first of these faults makes the metadata log name the voters (``kraft.version`` 1). Until
  then the quorum is configured by files.
* Each is over when all controllers vote, even if a request was late. The exception is a disk that
  is lost without any request: the daemons alone determine how that ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol

from kraftjbod.cli.clients.cluster_admin import (
    UpgradeType,
    unregister_controller,
    update_features,
)
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.quorum.quorum_admin import (
    VoterToChange,
    add_voter,
    remove_voter,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.metadata_version import KRAFT_VERSION
from kraftjbod.core.node_config import Endpoint
from kraftjbod.testing.simulation.simulated_cluster import SimulatedController
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.stage import Plays, Stage, wait

#: Share of the changes that remove two voters one after the other, so that the third votes alone.
_TWO: Final = 0.3
#: Share of the quorums by mistake whose voter reaches only the mistaken controller.
_LOOKS_FOR_LEADER: Final = 0.7
#: Time until that voter has abandoned its leader, and asked the mistaken controller.
_LOOKS_S: Final = 3.0
#: Share of the removed voters that are unregistered as well.
_UNREGISTERED: Final = 0.4
#: Time in which a leader that is cut off receives the request.
_REMOVES_S: Final = 1.0
_PAUSE_S: Final = 0.3
_AGAIN_S: Final = 0.3
#: Time after which an earlier request is answered or lost.
_LATE_S: Final = 2.0


class NotifiedInvariants(Protocol):
    """Invariants that receive the names of hosts with a new disk, or cut off from the others."""

    def forgets_all(self, name: str) -> None: ...

    def cut_off(self, name: str) -> None: ...

    def connected(self, name: str) -> None: ...


class VoterFaults:
    """
    :param invariants: notified of controllers that start with an empty disk or are cut off.
    """

    def __init__(
        self, stage: Stage, operator: OperatorWork, invariants: NotifiedInvariants
    ) -> None:
        self._stage = stage
        self._operator = operator
        self._invariants = invariants

    def plays(self) -> Plays:
        return {
            Kind.VOTERS: self._change,
            Kind.METADATA_REPLACED: self._replace,
            Kind.METADATA_STANDALONE: self._format_standalone,
            Kind.METADATA_LOST: self._lose,
            Kind.VOTERS_CUT_OFF: self._remove_while_cut_off,
        }

    async def _change(self, fault: Fault) -> None:
        """Remove voters and add them again. Removed ones follow, or other faults keep them down."""
        rng, first = fault.rng(), self._stage.controller(fault)
        others = [host for host in self._stage.cluster.controllers if host is not first]
        some = [first, *(rng.sample(others, 1) if rng.random() < _TWO else ())]
        await self.name_voters()
        for host in some:
            await self._remove(_voter(host))
            if rng.random() < _UNREGISTERED:
                await self._unregister(host)
            await asyncio.sleep(rng.random() * _PAUSE_S)
        await wait(fault)
        if rng.random() < 0.5:
            some.reverse()
        for host in some:
            await self._add(host)
        await self._until_nothing_is_late()

    async def _remove_while_cut_off(self, fault: Fault) -> None:
        """Let the leader, cut off from the other controllers, remove one of them.

        The removal is in force in its log until the next leader replaces that entry.
        """
        rng, network = fault.rng(), self._stage.cluster.network
        await self.name_voters()
        await self._until_all_vote()
        async with self._stage.struck_controller(replace(fault, controller=0)):
            leader = self._stage.view.active_host
            if leader is None:
                return
            others = [one for one in self._stage.cluster.controllers if one is not leader]
            voter, is_cut_off = _voter(rng.choice(others)), asyncio.Event()

            async def remove(client: ClusterClient) -> None:
                for other in others:
                    network.partition(leader.name, other.name)
                self._invariants.cut_off(leader.name)
                is_cut_off.set()
                await remove_voter(client, voter)

            what = f"remove voter {voter.node_id}-{voter.directory_id} by {leader.name}, cut off"
            asking = asyncio.create_task(self._operator.ask(what, remove))
            # The request waits for a broker that answers, if others are stopped.
            cut_off = asyncio.create_task(is_cut_off.wait())
            await asyncio.wait([asking, cut_off], return_when=asyncio.FIRST_COMPLETED)
            cut_off.cancel()
            await asyncio.sleep(_REMOVES_S)
            await wait(fault)
            for other in others:
                network.heal(leader.name, other.name)
                self._invariants.connected(other.name)
            self._invariants.connected(leader.name)
            await asking
        await self._until_nothing_is_late()

    async def _format_standalone(self, fault: Fault) -> None:
        """Format the disk of a voter with ``--standalone`` by mistake, and correctly later.

        The other voters, and brokers, reach the mistaken controller at the voter's address.
        """
        await self._replace(fault, is_mistaken=True)

    async def _replace(self, fault: Fault, *, is_mistaken: bool = False) -> None:
        """Follow the manual: remove the former id, format the disk, add the new id."""
        rng = fault.rng()
        await self.name_voters()
        await self._until_all_vote()
        if is_mistaken:
            await self._until_observers_follow()
        async with self._stage.struck_controller(fault) as host:
            former = _voter(host)
            async with self._stage.controller_down(host):
                host.kill()
                if is_mistaken:
                    await self._run_standalone(host, fault)
                self._stage.cluster.replace_metadata_disk(host)
                self._invariants.forgets_all(host.name)
                if is_removed_first := rng.random() < 0.5:
                    await self._remove(former)
                await wait(fault)
            if not is_removed_first:
                await self._remove(former)
            await self._add(host)
        await self._until_nothing_is_late()

    async def _until_observers_follow(self) -> None:
        """Wait, because an observer without a log follows the first quorum that it finds."""
        for observer in self._stage.cluster.observers:
            while self._stage.view.controller_not_whole(observer):
                await asyncio.sleep(_AGAIN_S)

    async def _run_standalone(self, host: SimulatedController, fault: Fault) -> None:
        self._stage.cluster.replace_metadata_disk(host, is_standalone=True)
        self._invariants.forgets_all(host.name)
        host.start()
        rng, network = fault.rng(), self._stage.cluster.network
        peers = [one.name for one in self._stage.cluster.controllers if one is not host]
        rng.shuffle(peers)
        # A voter that reaches no other controller looks for a leader, and finds the mistaken one.
        lonely, *rest = peers
        cut_off = rest if rng.random() < _LOOKS_FOR_LEADER else []
        for other in cut_off:
            network.partition(lonely, other)
        await asyncio.sleep(max(fault.for_ms / 1000, _LOOKS_S if cut_off else 0.0))
        for other in cut_off:
            network.heal(lonely, other)
        host.kill()

    async def _lose(self, fault: Fault) -> None:
        """Lose a disk while the operator does nothing of the manual, and wait for nothing."""
        host = self._stage.controller(fault)
        self._stage.note(f"#{fault.number} strikes {host.name}")
        async with self._stage.controller_down(host):
            host.kill()
            self._stage.cluster.replace_metadata_disk(host, is_voter=fault.rng().random() < 0.6)
            self._invariants.forgets_all(host.name)
            await wait(fault)

    # --- requests until they succeed -------------------------------------------------------------

    async def name_voters(self) -> None:
        """Make the metadata log name the voters, if it does not."""

        async def name(client: ClusterClient) -> None:
            await update_features(client, {KRAFT_VERSION: 1}, upgrade_type=UpgradeType.UPGRADE)

        if not self._stage.cluster.names_voters:
            await self._until_done("name the voters in the metadata log", name)
            self._stage.cluster.names_voters = True

    async def _remove(self, voter: VoterToChange) -> None:
        async def remove(client: ClusterClient) -> None:
            await remove_voter(client, voter)

        what = f"remove voter {voter.node_id}-{voter.directory_id}"
        await self._until_done(what, remove, but=ErrorCode.VOTER_NOT_FOUND)

    async def _unregister(self, host: SimulatedController) -> None:
        """Unregister a former voter, which registers again if it runs."""

        async def unregister(client: ClusterClient) -> None:
            await unregister_controller(client, host.node_id)

        await self._operator.ask(f"unregister controller {host.node_id}", unregister)

    async def _add(self, host: SimulatedController) -> None:
        voter = _voter(host)

        async def add(client: ClusterClient) -> None:
            await add_voter(client, voter)

        what = f"add voter {voter.node_id}-{voter.directory_id}"
        await self._until_done(what, add, but=ErrorCode.DUPLICATE_VOTER)

    async def _until_all_vote(self) -> None:
        while missing := self._stage.view.not_voting():
            for host in missing:
                await self._add(host)
            await asyncio.sleep(_AGAIN_S)

    async def _until_nothing_is_late(self) -> None:
        """Wait, because a request without an answer may take effect after later requests."""
        await self._until_all_vote()
        await asyncio.sleep(_LATE_S)
        await self._until_all_vote()

    async def _until_done(
        self,
        what: str,
        question: Callable[[ClusterClient], Awaitable[None]],
        *,
        but: ErrorCode | None = None,
    ) -> None:
        """:param but: error code that means that the request is already fulfilled."""
        while (code := await self._operator.ask(what, question)) is not None and code is not but:
            await asyncio.sleep(_AGAIN_S)


def _voter(host: SimulatedController) -> VoterToChange:
    """Return the voter with its current disk."""
    return VoterToChange(
        node_id=host.node_id,
        directory_id=host.directory_id,
        endpoints=(Endpoint.parse(host.properties["listeners"]),),
    )
