"""``MetricsSnapshots``: the file is complete, replaced atomically, and never blocks the loop."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from structlog.testing import capture_logs

from kraftjbod.core.telemetry import Metrics
from kraftjbod.daemon.process.metrics_snapshots import MetricsSnapshots


def snapshots_of(path: Path, metrics: Metrics) -> MetricsSnapshots:
    return MetricsSnapshots(path, metrics, interval_ms=1, is_complete=lambda: True)


async def test_first_snapshot_waits_until_every_metric_is_registered(tmp_path: Path) -> None:
    path, metrics, asked = tmp_path / "figures.json", Metrics(), []

    def is_complete() -> bool:
        asked.append(path.exists())
        if len(asked) == 5:
            metrics.count("late")
        return len(asked) >= 5

    snapshots = MetricsSnapshots(path, metrics, interval_ms=1, is_complete=is_complete)
    running = asyncio.create_task(snapshots.write_snapshots())
    while not path.exists():
        await asyncio.sleep(0.001)
    running.cancel()
    assert asked[:5] == [False] * 5
    assert json.loads(path.read_text())["late"] == 1


async def test_hanging_disk_delays_snapshots_but_not_the_event_loop(tmp_path: Path) -> None:
    """Opening a pipe without a reader hangs."""
    path, metrics = tmp_path / "figures.json", Metrics()
    metrics.count("beats")
    os.mkfifo(tmp_path / "figures.json.tmp")
    running = asyncio.create_task(snapshots_of(path, metrics).write_snapshots())
    with capture_logs() as logged:
        while "metrics_snapshot_waits" not in {event["event"] for event in logged}:
            await asyncio.sleep(0.001)
        for _ in range(20):
            metrics.count("beats")
            await asyncio.sleep(0.001)
        reader = os.open(tmp_path / "figures.json.tmp", os.O_RDONLY)
        while "metrics_snapshots_resumed" not in {event["event"] for event in logged}:
            await asyncio.sleep(0.001)
        os.close(reader)
        while not path.is_file():
            await asyncio.sleep(0.001)
    running.cancel()
    # Each event comes once; a slow machine may log another wait afterwards.
    assert [event["event"] for event in logged][:2] == [
        "metrics_snapshot_waits",
        "metrics_snapshots_resumed",
    ]
    assert json.loads(path.read_text())["beats"] == 21


async def test_unwritable_snapshot_file_is_logged_and_retried(tmp_path: Path) -> None:
    folder, metrics = tmp_path / "later", Metrics()
    path = folder / "figures.json"
    running = asyncio.create_task(snapshots_of(path, metrics).write_snapshots())
    with capture_logs() as logged:
        while not any(event["event"] == "metrics_snapshot_failed" for event in logged):
            await asyncio.sleep(0.001)
        folder.mkdir()
        while not path.exists():
            await asyncio.sleep(0.001)
    running.cancel()


async def test_metrics_draft_does_not_follow_symbolic_link(tmp_path: Path) -> None:
    """A user who may write in the directory must not choose a file that the daemon overwrites."""
    victim, path = tmp_path / "victim", tmp_path / "figures.json"
    victim.write_text("precious")
    (tmp_path / "figures.json.tmp").symlink_to(victim)
    running = asyncio.create_task(snapshots_of(path, Metrics()).write_snapshots())
    with capture_logs() as logged:
        while not path.exists() and not any(
            event["event"] == "metrics_snapshot_failed" for event in logged
        ):
            await asyncio.sleep(0.001)
        assert victim.read_text() == "precious"
        (tmp_path / "figures.json.tmp").unlink(missing_ok=True)
        while not path.exists():
            await asyncio.sleep(0.001)
    running.cancel()
    assert path.stat().st_mode & 0o007 == 0, "others cannot read it"
