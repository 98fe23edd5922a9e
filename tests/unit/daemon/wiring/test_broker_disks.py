"""``open_disks``: opening the directories of a broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import StartupError
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks, open_disks
from tests.faults.rig import CLUSTER_ID, directory_id
from tests.unit.daemon.daemon_rig import broker_config, format_disk

NO_CONTROLLER = 9


async def _close(disks: BrokerDisks) -> None:
    await disks.logs.close(broker_epoch=-1)
    disks.metadata_dir.close()


async def test_open_disks_identifies_every_directory_by_its_id(tmp_path: Path) -> None:
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2)]
    disks = await open_disks(broker_config(NO_CONTROLLER, *paths), Environment())
    assert disks.cluster_id == CLUSTER_ID
    assert [d.directory_id for d in disks.logs.online_dirs()] == [directory_id(1), directory_id(2)]
    assert disks.metadata_dir is disks.logs.dirs()[0]
    await _close(disks)


async def test_open_disks_excludes_separate_metadata_dir_from_log_dirs(tmp_path: Path) -> None:
    paths = [format_disk(tmp_path / f"d{n}", n) for n in (1, 2)]
    meta = format_disk(tmp_path / "meta", 3)
    config = broker_config(NO_CONTROLLER, *paths, metadata_log_dir=meta)
    disks = await open_disks(config, Environment())
    assert disks.metadata_dir.path == meta
    assert [d.path for d in disks.logs.dirs()] == paths
    await _close(disks)


async def test_open_disks_with_missing_directory_starts_with_it_offline(tmp_path: Path) -> None:
    sound, gone = (format_disk(tmp_path / f"d{n}", n) for n in (1, 2))
    (tmp_path / "d2" / "meta.properties").unlink()
    (tmp_path / "d2").rmdir()
    with capture_logs() as logged:
        disks = await open_disks(broker_config(NO_CONTROLLER, sound, gone), Environment())
    assert [d.path for d in disks.logs.online_dirs()] == [sound]
    assert [d.path for d in disks.logs.offline_dirs()] == [gone]
    assert [t["log_dir"] for t in logged if t["event"] == "log_dir_offline"] == [gone]
    await _close(disks)


async def test_open_disks_without_formatted_directory_fails_start(tmp_path: Path) -> None:
    (tmp_path / "d1").mkdir()
    config = broker_config(NO_CONTROLLER, str(tmp_path / "d1"))
    with pytest.raises(StartupError, match="format"):
        await open_disks(config, Environment())


async def test_open_disks_with_other_cluster_id_than_configured_fails_start(
    tmp_path: Path,
) -> None:
    ours, new = format_disk(tmp_path / "d1", 1), tmp_path / "d2"
    new.mkdir()
    config = broker_config(NO_CONTROLLER, ours, str(new), cluster_id="A" * 22)
    with pytest.raises(StartupError, match=rf"d1 belongs to cluster {CLUSTER_ID}.*says .*=AAA"):
        await open_disks(config, Environment())
    assert not list(new.glob("*.properties"))


async def test_open_disks_takes_directory_of_another_cluster_offline(tmp_path: Path) -> None:
    ours = format_disk(tmp_path / "d1", 1)
    theirs = format_disk(tmp_path / "d2", 2, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    disks = await open_disks(broker_config(NO_CONTROLLER, ours, theirs), Environment())
    (refused,) = disks.logs.offline_dirs()
    assert (refused.path, disks.cluster_id) == (theirs, CLUSTER_ID)
    assert "belongs to cluster AAAAAAAAAAAAAAAAAAAAAA" in refused.offline_reason
    await _close(disks)


async def test_open_disks_without_usable_directory_fails_start_with_all_reasons(
    tmp_path: Path,
) -> None:
    metadata = format_disk(tmp_path / "meta", 1)
    config = broker_config(
        NO_CONTROLLER,
        format_disk(tmp_path / "d1", 2, cluster_id="AAAAAAAAAAAAAAAAAAAAAA"),
        str(tmp_path / "absent"),
    )
    config = config.model_copy(update={"metadata_log_dir": metadata})
    with pytest.raises(StartupError, match="none of the log directories can be used") as caught:
        await open_disks(config, Environment())
    assert "belongs to cluster" in str(caught.value)
    assert "absent does not exist" in str(caught.value)
