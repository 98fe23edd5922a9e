"""``DirLoading``: the replicas found in one directory."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.storage.log.producer_state import DEFAULT_PRODUCER_LIMITS
from kraftjbod.storage.replicas.dir_loading import DirLoading, LoadProgress
from tests.faults.rig import TP
from tests.unit.storage.replicas.test_replica_swap import (
    MOVE,
    Node,
    create,
    move_to_end,
    promote,
    registry_of,
    start,
)


def loading_of(node: Node) -> DirLoading:
    return DirLoading(
        registry=registry_of(node),
        host=node.manager,
        clock=node.clock,
        producer_limits=DEFAULT_PRODUCER_LIMITS,
    )


async def test_dir_loading_returns_replicas_and_futures_and_logs_unknown_names() -> None:
    node = await start()
    await create(node, 4)
    await move_to_end(node)
    node.disks[1].make_dirs("/d2/lost+found")
    node = await start(node.disks)
    progress: list[LoadProgress] = []
    with capture_logs() as events:
        loaded = await loading_of(node).load(node.target, progress.append)
    assert [e["event"] for e in events] == ["unknown_names_in_log_dir"]
    assert (loaded.handles, loaded.deleted, loaded.broken_futures) == ([], [], [])
    assert [future.move_id for future in loaded.futures] == [MOVE]
    assert progress == [(node.target, 0, 0, 0)]
    loaded = await loading_of(node).load(node.source, progress.append)
    assert [handle.topic_partition for handle in loaded.handles] == [TP]
    assert loaded.moved_here == []


async def test_dir_loading_returns_replicas_that_were_moved_here() -> None:
    node = await start()
    await create(node, 4)
    await move_to_end(node)
    await promote(node)
    loaded = await loading_of(node).load(node.target, lambda progress: None)
    assert loaded.moved_here == loaded.handles
    loaded = await loading_of(node).load(node.source, lambda progress: None)
    assert [(d.topic_partition, d.unique) for d in loaded.deleted] == [(TP, MOVE)]
