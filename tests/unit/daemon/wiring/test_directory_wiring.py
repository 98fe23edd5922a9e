"""Wiring of a broker's directories."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.metadata.state import MetadataDelta
from tests.unit.daemon.daemon_rig import disks_and_wiring_on


async def test_dynamic_cordon_reaches_the_log_dir(tmp_path: Path) -> None:
    record = ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="2", name="cordoned.log.dirs", value="*"
    )
    async with disks_and_wiring_on(tmp_path) as (disks, wiring):
        (log_dir,) = disks.logs.dirs()
        before = log_dir.is_cordoned
        state = wiring.cluster.cache.state
        state.replay([record], offset=state.offset + 1, epoch=1, delta=MetadataDelta())
        wiring.cluster.dynamic_configs.refresh()
        assert (before, log_dir.is_cordoned) == (False, True)
