"""Wiring of a broker's replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.metadata.state import MetadataDelta
from tests.unit.daemon.daemon_rig import wiring_on


async def test_dynamic_move_rate_reaches_the_mover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[int] = []
    monkeypatch.setattr(ReplicaAlterLogDirsManager, "set_rate", lambda _, rate: rates.append(rate))
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    record = ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="", name=key, value="1234567"
    )
    async with wiring_on(tmp_path) as wiring:
        state = wiring.cluster.cache.state
        state.replay([record], offset=state.offset + 1, epoch=1, delta=MetadataDelta())
        wiring.cluster.dynamic_configs.refresh()
        assert rates[-1] == 1_234_567
