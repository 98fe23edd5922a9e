"""Fixtures: a single voter, and a quorum of three."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir
from tests.faults.vfs_fault import FaultVfs
from tests.unit.raft.driver_rig import (
    PATH,
    Node,
)
from tests.unit.raft.quorum_rig import IDS, Net


@pytest.fixture
def memory() -> MemVfs:
    made = MemVfs()
    format_dir(made, PATH, 1)
    return made


@pytest.fixture
def vfs(memory: MemVfs) -> FaultVfs:
    return FaultVfs(memory)


@pytest.fixture
async def node(vfs: FaultVfs) -> AsyncIterator[Node]:
    made = Node(vfs)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    made = Net()
    for node_id in IDS:
        memory = MemVfs()
        format_dir(memory, PATH, 1)
        await made.start(node_id, FaultVfs(memory))
    yield made
    for node in made.nodes.values():
        node.vfs.release()
        if node.node_id not in made.cut or node.driver.leads:
            await node.stop()
