"""``NotedVoters``: the note waits for space only for a log without an earlier note."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.log.noted_voters import NotedVoters
from kraftjbod.raft.log.static_voters import VotersToNote
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, format_dir, open_dir
from tests.unit.broker.gates import until

PATH = "/d1/static-voters"


async def test_noted_voters_of_an_older_log_are_written_when_the_disk_has_space() -> None:
    memory = MemVfs()
    format_dir(memory, "/d1", 1)
    log_dir = open_dir(memory, "/d1", clock=ManualClock())
    noted = NotedVoters(log_dir=log_dir, retry_interval_ms=1, log=get_logger())
    memory.capacity_bytes = 0
    with pytest.raises(LogDirImpairedError):
        await noted.note(VotersToNote(PATH, "[1]", can_wait=False))
    with capture_logs() as events:
        await noted.note(VotersToNote(PATH, "[1, 2, 3]", can_wait=True))
        await until(lambda: "static_voters_wait" in {e["event"] for e in events})
        assert not memory.exists(PATH)
        memory.capacity_bytes = None
        await until(lambda: "static_voters_noted" in {e["event"] for e in events})
    assert bytes(memory.read_if_exists(PATH) or b"") == b"[1, 2, 3]"
    assert [e["event"] for e in events if "static" in e["event"]] == [
        "static_voters_wait",
        "static_voters_noted",
    ]
    await noted.stop()
    log_dir.close()
