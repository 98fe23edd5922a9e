"""``LogDirCordons``: which directories are cordoned, and how changes are reported."""

from __future__ import annotations

from collections.abc import Collection

from structlog.testing import capture_logs

from kraftjbod.broker.directories.log_dir_cordons import LogDirCordons
from kraftjbod.core.config import DynamicBrokerConfig
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.telemetry import Metrics
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.unit.broker.broker_rig import BrokerRig, brokers, dir_of
from tests.unit.broker.directories.test_log_dir_admin import die, perform, registered

CORDONS = "cordoned.log.dirs"


def _set(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name=name, name=CORDONS, value=value
    )


def _cordoned(rig: BrokerRig) -> list[str]:
    return [log_dir.path for log_dir in rig.dirs if log_dir.is_cordoned]


class _Reported:
    """Replaces the lifecycle manager and records the cordons that it would report."""

    def __init__(self) -> None:
        self.cordoned: list[set[DirectoryId]] = []
        self.lifted: list[int] = []

    def set_cordoned(self, directory_ids: Collection[DirectoryId]) -> None:
        self.cordoned.append(set(directory_ids))


def _cordons(rig: BrokerRig, found: _Reported, metrics: Metrics | None = None) -> LogDirCordons:
    return LogDirCordons(
        logs=rig.logs,
        lifecycle=found,  # type: ignore[arg-type]
        metrics=metrics or Metrics(),
        on_lifted=lambda: found.lifted.append(1),
    )


def _config(*paths: str) -> DynamicBrokerConfig:
    return DynamicBrokerConfig.from_values({CORDONS: ",".join(paths)}, source="test")


async def test_static_cordons_apply_from_the_start_until_overridden() -> None:
    """Kafka's brokers ignore the static value until another configuration changes."""
    async with brokers(cordoned_log_dirs="/d1") as (rig,):
        assert _cordoned(rig) == ["/d1"]
        await rig.follow(_set("", "*"))
        assert _cordoned(rig) == ["/d1", "/d2"]
        await rig.follow(_set("1", "/d2"))
        assert _cordoned(rig) == ["/d2"]
        await rig.follow(_set("1", ""))
        assert _cordoned(rig) == []
        await rig.follow(_set("", None), _set("1", None))
        assert _cordoned(rig) == ["/d1"]


async def test_controller_is_notified_only_of_changed_cordons() -> None:
    async with brokers() as (rig,):
        found = _Reported()
        cordons = _cordons(rig, found)
        with capture_logs() as lines:
            for config in (_config("/d1"), _config("/d1"), _config("*"), _config()):
                cordons.take(config)
        assert found.cordoned == [{dir_of(1, 1)}, {dir_of(1, 1), dir_of(1, 2)}, set()]
        events = [line["paths"] for line in lines if line["event"] == "log_dirs_cordoned"]
        assert events == [["/d1"], ["/d1", "/d2"], []]
        assert len(found.lifted) == 1, "waiting replicas are retried"


async def test_renewed_cordons_report_a_changed_directory_id() -> None:
    async with brokers() as (rig,):
        found = _Reported()
        cordons = _cordons(rig, found)
        cordons.take(_config("/d2"))
        rig.dirs[1].directory_id = dir_of(1, 9)
        cordons.renew()
        assert found.cordoned == [{dir_of(1, 2)}, {dir_of(1, 9)}]


async def test_cordoned_path_of_another_broker_is_logged_once_and_ignored() -> None:
    async with brokers() as (rig,):
        found = _Reported()
        cordons = _cordons(rig, found)
        with capture_logs() as lines:
            cordons.take(_config("/elsewhere", "/d1"))
            cordons.take(_config("/elsewhere", "/d1"))
        foreign = [line for line in lines if line["event"] == "cordoned_log_dirs_not_here"]
        assert [line["paths"] for line in foreign] == [["/elsewhere"]]
        assert _cordoned(rig) == ["/d1"]


async def test_cordoned_log_directory_count_is_a_metric() -> None:
    async with brokers() as (rig,):
        metrics = Metrics()
        _cordons(rig, _Reported(), metrics).take(_config("/d2"))
        assert metrics.snapshot() == {"CordonedLogDirectoryCount": 1}


async def test_reattached_directory_keeps_its_cordon() -> None:
    """The directory is a new object, to which metrics and later changes refer."""
    async with registered() as rig:
        await rig.follow(_set("1", "/d2"))
        await die(rig)
        await perform(rig, "reattach", "/d2")
        back = rig.logs.dir_by_id(dir_of(1, 2))
        assert back is not None and back is not rig.dirs[1]
        assert back.is_cordoned
        await rig.follow(_set("1", ""))
        assert not back.is_cordoned
        assert rig.around.metrics.snapshot()["CordonedLogDirectoryCount"] == 0


async def test_added_directory_is_cordoned_immediately() -> None:
    new = MemVfs()
    new.make_dirs("/d3")
    async with registered() as rig:
        rig.disks_at["/d3"] = new
        await rig.follow(_set("1", "*"))
        added = await perform(rig, "add", "/d3")
        log_dir = rig.logs.dir_by_id(added.directory_id)
        assert log_dir is not None and log_dir.is_cordoned
        assert rig.around.metrics.snapshot()["CordonedLogDirectoryCount"] == 3
