"""The metrics of each log directory, by name and value."""

from __future__ import annotations

from kraftjbod.broker.cluster.lifecycle.lifecycle_events import DirectoryFailed, DirectoryForgotten
from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.vfs import Space
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, produce, topic
from tests.unit.broker.gates import until


def figures(rig: BrokerRig, path: str = "/d1") -> dict[str, float]:
    """The metrics of one directory, by name."""
    tag = f',logDirectory="{path}"'
    return {
        name.removeprefix("LogDirectory").removesuffix(tag): value
        for name, value in rig.around.metrics.snapshot().items()
        if name.startswith("LogDirectory") and name.endswith(tag)
    }


async def test_log_dir_metrics_report_space_replicas_and_operations() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        records = batch(3)
        for _ in range(4):
            await rig.ask(produce(records), 9)
        rig.dirs[0].space = Space(total_bytes=1_000, usable_bytes=300, free_inodes=7)
        rig.parts.monitor.check()
        found = figures(rig)
        names = ("TotalBytes", "UsedBytes", "UsableBytes", "FreeInodes", "ReserveBytes")
        assert [found[name] for name in names] == [1_000, 700, 300, 7, 0]
        assert (found["ReplicaCount"], found["Slow"]) == (1, False)
        assert "SecondsUntilFull" not in found  # The disk is not filling up.
        assert (found["WriteOperations"], found["WriteErrors"]) == (4, 0)
        assert found["WriteBytes"] == 4 * len(records)
        buckets = [v for name, v in found.items() if name.startswith('WriteLatencyMs,le="')]
        assert buckets == sorted(buckets)
        assert found['WriteLatencyMs,le="+Inf"'] == 4
        assert "LastScrubMs" not in found
        assert figures(rig, "/d2")["ReplicaCount"] == 0


async def test_log_dir_metrics_report_states_and_their_counts() -> None:
    names = ("Offline", "Saturated", "Stalled")
    counts = [f"{state}LogDirectoryCount" for state in ("Impaired", "Saturated", "Stalled")]
    async with brokers() as (rig,):

        def gauges() -> list[float]:
            snapshot = rig.around.metrics.snapshot()
            return [snapshot[name] for name in (*counts, "OfflineLogDirectoryCount")]

        assert gauges() == [0, 0, 0, 0]
        rig.dirs[0].suspect("test")
        rig.dirs[1].state = LogDirState.SATURATED
        assert gauges() == [2, 1, 1, 0]
        assert [figures(rig)[name] for name in names] == [False, False, True]
        assert [figures(rig, "/d2")[name] for name in names] == [False, True, False]
        rig.dirs[1].is_cordoned = True
        assert [figures(rig, path)["Cordoned"] for path in ("/d1", "/d2")] == [0, 1]
        rig.dirs[1].state = LogDirState.ONLINE
        rig.dirs[0].go_offline("test")
        assert gauges() == [0, 0, 0, 1]
        # An offline directory has no other metrics.
        assert figures(rig)["Offline"]
        assert "TotalBytes" not in figures(rig)


async def test_log_dir_metrics_report_the_age_of_unacknowledged_failures() -> None:
    name = "OldestUnacknowledgedLogDirectoryFailureMs"
    async with brokers() as (rig,):
        state = rig.parts.lifecycle._state
        assert rig.around.metrics.snapshot()[name] == 0
        uid = rig.dirs[0].directory_id
        state.handle(DirectoryFailed(directory_id=uid, leads=bool), 0)
        assert rig.around.metrics.snapshot()[name] == 0
        await until(lambda: rig.around.metrics.snapshot()[name] > 0)
        state.handle(DirectoryForgotten(directory_id=uid), 0)
        assert rig.around.metrics.snapshot()[name] == 0


async def test_log_dir_metrics_report_scrubs() -> None:
    async with brokers(log_dir_scrub_interval_ms="1") as (rig,):
        rig.tasks.start(rig.parts.scrubs.run_scrubs(), "scrubs")
        await until(lambda: figures(rig).get("ScrubPasses"))
        found = figures(rig)
        assert found["LastScrubMs"] > 0
        assert found["ScrubDamagesFound"] == found["ScrubReplicasRepaired"] == 0


async def test_log_dir_metrics_report_slow_directories() -> None:
    async with brokers(log_dir_slow_min_ms="5", log_dir_slow_factor="2") as (rig,):
        rig.dirs[1].statistics.latency_ms = 10.0
        for _ in range(9):
            rig.parts.monitor.check()
        assert rig.around.metrics.snapshot()["SlowLogDirectoryCount"] == 1
        assert (figures(rig, "/d2")["Slow"], figures(rig)["Slow"]) == (True, False)
        assert figures(rig, "/d2")["LatencyMs"] == 10


async def test_log_dir_metrics_count_uncleanable_partitions_by_directory() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(3)), 9)
        handle = rig.logs.get(TP)
        assert handle is not None
        tag = f'logDirectory="{handle.log_dir.path}"'
        names = (f"uncleanable-partitions-count,{tag}", f"uncleanable-bytes,{tag}")
        snapshot = rig.around.metrics.snapshot()
        assert [snapshot[name] for name in names] == [0, 0]
        assert (snapshot["max-dirty-percent"], snapshot["cleaner-recopy-percent"]) == (0, 0)
        await rig.logs.cleaner._give_up(handle, CorruptRecordError("test", offset=1))
        snapshot = rig.around.metrics.snapshot()
        assert [snapshot[name] for name in names] == [1, handle.size_bytes]
        rig.logs.cleaner.truncated(TP)
        assert rig.around.metrics.snapshot()[names[0]] == 0
