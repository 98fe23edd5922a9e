"""``LinkFaults``: faults of the network between two hosts."""

from __future__ import annotations

from typing import Final

from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.stage import Plays, Stage, wait

#: Share of the cuts whose firewall rejects connection attempts; the others drop them.
REJECTS: Final = 0.35
#: Share of the connections broken for one side that this side sees as a FIN.
_BY_FIN: Final = 0.4


class LinkFaults:
    """Faults of one link, in both directions."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def plays(self) -> Plays:
        return {
            Kind.PARTITION: self._cut,
            Kind.ONE_WAY: self._cut,
            Kind.SLOW_LINK: self._slow,
            Kind.RESET: self._reset,
            Kind.HALF_OPEN: self._break_one_side,
        }

    async def _cut(self, fault: Fault) -> None:
        network, rng = self._stage.cluster.network, fault.rng()
        a, b = self._ends(fault)
        rejects = rng.random() < REJECTS
        network.partition(a, b, one_way=fault.kind is Kind.ONE_WAY, rejects=rejects)
        await wait(fault)
        network.heal(a, b)

    async def _slow(self, fault: Fault) -> None:
        undo = self._stage.cluster.network.delay(*self._ends(fault), fault.rng().randint(20, 400))
        await wait(fault)
        undo()

    async def _reset(self, fault: Fault) -> None:
        self._stage.cluster.network.reset_connections(*self._ends(fault))

    async def _break_one_side(self, fault: Fault) -> None:
        """Break a connection for one side.

        A controller gets no FIN, which would mean that the broker's process has ended (ADR 90).
        """
        a, b = self._ends(fault)
        by_fin = fault.other > 0 and fault.rng().random() < _BY_FIN
        self._stage.cluster.network.break_one_side(a, b, by_fin=by_fin)

    def _ends(self, fault: Fault) -> tuple[str, str]:
        brokers = self._stage.cluster.brokers
        far = brokers[fault.other] if fault.other else self._stage.controller(fault)
        ends = [brokers[fault.broker].name, far.name]
        fault.rng().shuffle(ends)
        return ends[0], ends[1]
