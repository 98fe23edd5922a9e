"""``ReplicaRegistry``: registration of replicas, and removal with their directory."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.dir_names import ReplicaDirKind
from kraftjbod.storage.log.log_handle import LogHandle
from tests.faults.rig import TOPIC_ID, TP, directory_id
from tests.unit.storage.replicas.test_replica_swap import MOVE, create, registry_of, start


async def test_replica_registry_sets_both_copies_of_a_replica_aside() -> None:
    node = await start()
    handle = await create(node, 1)
    registry = registry_of(node)
    registry.take_in(handle)
    assert registry.handles == {}
    assert registry.held_aside == {TP: [handle, handle]}
    assert registry.has_current(TP)
    registry.take_in(handle)
    assert len(registry.every_handle_in(node.source)) == 3


async def test_replica_registry_forgets_the_replicas_of_a_directory() -> None:
    node = await start()
    handle = await create(node, 1)
    other = await node.manager.create(TopicPartition("t", 1), TOPIC_ID, directory_id(2))
    await node.manager.create_future(TP, node.target, MOVE)
    registry = registry_of(node)
    assert [*registry.futures] == [TP]
    assert registry.forget_all_in(node.target) == [other]
    assert registry.futures == {}
    assert [*registry.handles.values()] == [handle]


async def test_replica_registry_require_online_returns_the_directory_or_the_reason() -> None:
    node = await start()
    assert registry_of(node).require_online(directory_id(2)) is node.target
    with pytest.raises(KafkaStorageError, match="none of this node's"):
        registry_of(node).require_online(directory_id(9))
    node.target.go_offline("pulled out")
    with pytest.raises(KafkaStorageError, match="pulled out"):
        registry_of(node).require_online(directory_id(2))


async def test_replica_registry_doomed_path_contains_the_given_id() -> None:
    node = await start()
    path = registry_of(node).doomed_path(node.source, TP, ReplicaDirKind.DELETE, MOVE)
    assert path == f"/d1/t-0.{MOVE.hex()}-delete"


async def test_replica_registry_finds_replicas_of_a_directory_without_scanning_others() -> None:
    """A broker with 36 directories looks up the replicas of each every second."""
    node = await start()
    handle = await create(node, 1)
    other = await node.manager.create(TopicPartition("t", 1), TOPIC_ID, directory_id(2))
    registry = registry_of(node)

    class Unscanned(dict[TopicPartition, LogHandle]):
        def values(self) -> Any:
            raise AssertionError("the replicas of all dirs were looked at")

    registry.handles = Unscanned(registry.handles)
    assert registry.handles_in(node.source) == [handle]
    assert registry.every_handle_in(node.target) == [other]
    registry.put(other)
    assert registry.handles_in(node.target) == [other]
    assert registry.remove(TopicPartition("t", 1)) is other
    assert registry.remove(TopicPartition("t", 1)) is None
    assert registry.handles_in(node.target) == []
