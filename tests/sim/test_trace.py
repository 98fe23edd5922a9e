"""``Trace``: lines, counts, and a hash that any difference changes."""

from __future__ import annotations

from kraftjbod.testing.simulation.trace import Trace


def test_trace_hash_changes_with_every_step_and_line() -> None:
    said: list[str] = []
    trace = Trace(keep=2, on_line=said.append)
    trace.now_us = lambda: 1_500_000
    hashes = [trace.hash]
    trace.note("broker-1", "disk", "open /d0/f 0")
    hashes.append(trace.hash)
    trace.step(1_600_000, 3)
    hashes.append(trace.hash)
    trace.event("broker-1", {"event": "log_dir_offline", "level": "error", "timestamp": "now"})
    hashes.append(trace.hash)
    trace.note("network", "fault", "heal all all")
    hashes.append(trace.hash)
    assert len(set(hashes)) == 5
    assert said[0] == "1.500000 broker-1 disk open /d0/f 0"
    assert said[1] == "1.500000 broker-1 error log_dir_offline "
    assert list(trace.lines) == said[1:]
    assert trace.events[0]["at_ms"] == 1500
    assert trace.counts == {"disk": 1, "error": 1, "fault": 1}
