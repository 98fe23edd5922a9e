"""``FaultPlayer``: plays a schedule of faults: inject, wait, heal, and await recovery.

A fault ends when its target is back in service, regardless of other faults: a broker that
ended is started, an offline directory is reattached until it is online. Nothing here has a time
limit; the caller that waits for the end of the schedule has one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Final

from tests.sim.search.faults.admin_work import AdminWork
from tests.sim.search.faults.budget import Budget
from tests.sim.search.faults.controller_faults import ControllerFaults
from tests.sim.search.faults.dir_faults import DirFaults
from tests.sim.search.faults.host_faults import HostFaults
from tests.sim.search.faults.late_controllers import LateControllers
from tests.sim.search.faults.link_faults import LinkFaults
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.schedule import Fault, Kind, Schedule, Struck
from tests.sim.search.faults.snapshot_rot import SnapshotRot
from tests.sim.search.faults.stage import Plays, Stage
from tests.sim.search.faults.voter_faults import VoterFaults

_LOOKS_S: Final = 0.25
#: Number of successive checks without a finding after which the cluster counts as recovered.
_WHOLE_LOOKS: Final = 4
#: Number of checks after which an ended daemon is restarted, as by systemd.
_RESTART_LOOKS: Final = 4


class FaultPlayer:
    """:param dirs: number of directories per broker, all online, of a recovered cluster."""

    def __init__(
        self,
        stage: Stage,
        operator: OperatorWork,
        controllers: ControllerFaults,
        rot: SnapshotRot,
        voters: VoterFaults,
        admin: AdminWork,
        budget: Budget,
        *,
        dirs: int,
    ) -> None:
        self.budget = budget
        self._stage = stage
        self._dirs = dirs
        self._dir_faults = DirFaults(stage, operator)
        self._rot = rot
        self._admin = admin
        self._plays: Plays = {
            **HostFaults(stage, operator).plays(),
            **self._dir_faults.plays(),
            **LinkFaults(stage).plays(),
            **controllers.plays(),
            **LateControllers(stage, rot).plays(),
            **voters.plays(),
            **operator.plays(),
            **admin.plays(),
        }
        self.played: Counter[Kind] = Counter()
        self.skipped: Counter[Kind] = Counter()
        #: Faults that ended.
        self.history: list[Struck] = []
        #: Faults that were cancelled before their end.
        self.unmended: list[Fault] = []

    @property
    def rotted(self) -> int:
        """Number of rotten bits so far."""
        return self._dir_faults.rotted + self._rot.rotted

    async def play(self, schedule: Schedule) -> None:
        """Play the schedule; return when the last fault is over."""
        began_ms = self._now_ms()
        tasks: list[asyncio.Task[None]] = []
        try:
            for fault in schedule:
                await asyncio.sleep(max(0, began_ms + fault.at_ms - self._now_ms()) / 1000)
                why_not = self.budget.why_not(fault)
                if why_not:
                    self.skipped[fault.kind] += 1
                    self._stage.note(f"{fault} is left out: {why_not}")
                    continue
                self.played[fault.kind] += 1
                tasks.append(asyncio.create_task(self._strike(fault), name=str(fault)))
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _strike(self, fault: Fault) -> None:
        self.budget.begun(fault)
        began_ms = self._now_ms()
        self._stage.note(f"{fault} begins")
        try:
            await self._plays[fault.kind](fault)
        except asyncio.CancelledError:
            self.unmended.append(fault)
            raise
        finally:
            self.budget.mended(fault)
            self.history.append(Struck(fault, began_ms, self._now_ms()))
            self._stage.note(f"{fault} is over")

    async def move_leaders(self, topics: Collection[str]) -> None:
        await self._admin.move_leaders(topics)

    async def supervise(self) -> None:
        """Restart ended daemons, and notify the budget when all replicas are in sync."""
        whole, ended = 0, Counter[int | str]()
        while True:
            await asyncio.sleep(_LOOKS_S)
            for broker, host in self._stage.cluster.brokers.items():
                ended[broker] = 0 if host.is_up else ended[broker] + 1
                if ended[broker] >= _RESTART_LOOKS:
                    self._stage.start(broker)
            for controller in self._stage.cluster.controllers:
                name = controller.name
                ended[name] = 0 if controller.is_up else ended[name] + 1
                if ended[name] >= _RESTART_LOOKS:
                    self._stage.start_controller(controller)
            self._admin.replace_outdated_software()
            whole = 0 if self._stage.view.not_whole(self._dirs) else whole + 1
            if whole >= _WHOLE_LOOKS:
                self.budget.all_in_sync()

    def _now_ms(self) -> int:
        return self._stage.cluster.now_ms
