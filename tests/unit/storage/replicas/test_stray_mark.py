"""The ``set-aside.json`` file, and examination of a stray directory."""

from __future__ import annotations

import pytest

from kraftjbod.core.ids import TopicId, Uuid
from kraftjbod.storage.checkpoints import format_leader_epochs, format_partition_metadata
from kraftjbod.storage.replicas.stray_mark import (
    FoundStray,
    StrayMark,
    StrayReason,
    examine_stray,
    parse_stray_mark,
    write_stray_mark,
)
from kraftjbod.storage.vfs import write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs


@pytest.mark.parametrize("log_id", [None, Uuid(b"l" * 16)])
@pytest.mark.parametrize("reason", StrayReason)
def test_examine_stray_returns_the_recorded_state(reason: StrayReason, log_id: Uuid | None) -> None:
    vfs = MemVfs()
    vfs.make_dirs("/s")
    mark = StrayMark(
        reason=reason, set_aside_ms=7, metadata_log_id=log_id, log_start_offset=3, high_watermark=9
    )
    write_stray_mark(vfs, "/s", mark)
    topic_id = TopicId(b"t" * 16)
    write_atomically(vfs, "/s/partition.metadata", format_partition_metadata(topic_id))
    write_atomically(vfs, "/s/leader-epoch-checkpoint", format_leader_epochs([(1, 0), (4, 2)]))
    found = examine_stray(vfs, "/s")
    size_bytes = sum(entry.known_size for entry in vfs.list_dir("/s", sized=""))
    assert found == FoundStray(
        topic_id=topic_id, last_epoch=4, mark=mark, size_bytes=size_bytes, holds_nothing=False
    )


def test_examine_stray_ignores_unreadable_files() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/s")
    nothing = FoundStray(
        topic_id=None, last_epoch=None, mark=None, size_bytes=0, holds_nothing=True
    )
    assert examine_stray(vfs, "/s") == nothing
    for name in ("partition.metadata", "leader-epoch-checkpoint", "set-aside.json"):
        write_atomically(vfs, f"/s/{name}", b"?")
    assert examine_stray(vfs, "/s") == FoundStray(
        topic_id=None, last_epoch=None, mark=None, size_bytes=3, holds_nothing=False
    )
    assert parse_stray_mark('{"reason": "bored"}') is None
