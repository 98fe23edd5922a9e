"""Fixtures: a controller that is the only voter, over a real directory thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.controller.quorum_controller import NO_RECORDS, QuorumController
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.ids import BrokerEpoch, BrokerId, ConnectionId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.telemetry import Metrics
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.machine.messages import RaftTransport
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, format_dir, open_dir
from tests.faults.vfs_fault import FaultVfs
from tests.golden.transcript import directory

ONE = BrokerId(1)


TWO = BrokerId(2)


class Node:
    def __init__(
        self,
        vfs: FaultVfs,
        *,
        max_pending: int = 100,
        reserve_bytes: int = 0,
        level: int = 17,
        max_fetch_bytes: int = 1000,
        quorum: RaftTransport | None = None,
        random_byte: bytes | None = None,
    ) -> None:
        """Create a controller on ``vfs``.

        :param quorum: the transport to voters 2 and 3; this controller is voter 1 then.
        :param random_byte: each byte that the controller draws; if None, 0 and 255.
        """
        ids = (9,) if quorum is None else (1, 2, 3)
        self.clock = ManualClock()
        self.has_no_listener = False
        self.metrics = Metrics()
        self.log_dir = open_dir(vfs, clock=self.clock, reserve_bytes=reserve_bytes)
        self.managers = ControlManagers(
            cluster_id="c",
            # The passes run more often than the configuration file may request.
            in_file=DynamicControllerConfig.model_construct(
                **{
                    **DynamicControllerConfig(broker_reconnect_grace_ms=500).model_dump(),
                    **{"leader_imbalance_check_interval_seconds": 0.01},
                    **{"unclean_leader_election_interval_ms": 10},
                    **{"metadata_max_fetch_bytes": max_fetch_bytes},
                }
            ),
            random_bytes=lambda count: (
                bytes(count - 1) + b"\xff" if random_byte is None else random_byte * count
            ),
            draw_below=lambda _: 0,
        )
        self.controller = QuorumController(
            make_managers=lambda: self.managers,
            driver=RaftDriver(
                log_dir=self.log_dir,
                store=RaftLogStore(
                    vfs=vfs, directory="/d1/log", segment_bytes=1000, retained_entries=0
                ),
                clock=self.clock,
                node_id=BrokerId(ids[0]),
                voters=VoterSet.of_keys([ReplicaKey(BrokerId(i)) for i in ids]),
                transport=quorum,
                draw_below=None if quorum is None else lambda _: 0,
                election_timeout_ms=2000,
                directory_id=directory("m"),
                first_payload_of_term=NO_RECORDS,
                bytes_between_snapshots=1 << 30,
                max_cached_bytes=1 << 20,
                max_pending_proposals=max_pending,
                kept_free_bytes=1000,
                retry_interval_ms=1,
            ),
            clock=self.clock,
            metrics=self.metrics,
            features={"metadata.version": level},
            is_refused=self.is_refused,
            directories=lambda: {BrokerId(ids[0]): directory("m")},
        )

    @property
    def driver(self) -> RaftDriver:
        return self.controller.driver

    async def is_refused(self, host: str, port: int) -> bool:
        return (host, port) == ("h", 1) and self.has_no_listener

    async def register(
        self, dirs: str = "a", broker_id: BrokerId = ONE, incarnation: bytes = b"\0"
    ) -> BrokerEpoch:
        request = m.BrokerRegistrationRequest(
            broker_id=broker_id,
            cluster_id="c",
            incarnation_id=Uuid(incarnation * 16),
            listeners=(m.ListenerInfo(name="P", host="h", port=1),),
            log_dirs=tuple(map(directory, dirs)),
        )
        response = await self.controller.handle(request)
        assert isinstance(response, m.BrokerRegistrationResponse)
        return response.broker_epoch

    async def heartbeat(
        self,
        epoch: BrokerEpoch,
        offline: str = "",
        broker_id: BrokerId = ONE,
        impaired: Mapping[str, LogDirState] | None = None,
        connection: int | None = None,
    ) -> m.BrokerHeartbeatResponse:
        request = m.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=epoch,
            current_metadata_offset=1000,
            want_fence=False,
            want_shut_down=False,
            offline_log_dirs=tuple(map(directory, offline)),
            impaired_log_dirs=None
            if impaired is None
            else tuple(
                m.ImpairedLogDir(directory_id=directory(name), state=state)
                for name, state in impaired.items()
            ),
        )
        came_on = None if connection is None else ConnectionId(connection)
        response = await self.controller.handle(request, came_on)
        assert isinstance(response, m.BrokerHeartbeatResponse)
        return response

    async def pass_time_until(self, holds: Callable[[], Any]) -> None:
        """Advance the clock in small steps; a long step would look like a pause of the
        controller."""
        while not holds():
            self.clock.ms += 200
            await asyncio.sleep(0.02)


@pytest.fixture
def vfs() -> FaultVfs:
    inner = MemVfs()
    format_dir(inner, "/d1", 1)
    return FaultVfs(inner)


@pytest.fixture
async def node(vfs: FaultVfs) -> AsyncIterator[Node]:
    made = Node(vfs)
    await made.controller.start()
    yield made
    await made.controller.stop()
    made.log_dir.close()
