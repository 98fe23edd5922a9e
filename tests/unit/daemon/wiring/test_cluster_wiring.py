"""Wiring of a broker's view of its cluster."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.core.ids import TopicIdPartition
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.metadata.records import ConfigRecord, Record, ResourceType
from kraftjbod.metadata.state import MetadataDelta
from kraftjbod.storage.replicas.requested_moves import RequestedMove
from tests.unit.broker.broker_rig import TOPIC_ID, dir_of, partition, topic
from tests.unit.daemon.daemon_rig import BROKER_ID, wiring_on


async def test_is_agreed_to_is_true_once_metadata_names_target_directory(tmp_path: Path) -> None:
    asked = TopicIdPartition(TOPIC_ID, 0), RequestedMove(dir_of(2, 1), dir_of(2, 2))
    async with wiring_on(tmp_path) as wiring:
        cluster = wiring.cluster
        answers = []
        for directory in (None, dir_of(2, 1), dir_of(2, 2)):
            if directory is not None:
                replica = partition(replicas=[BROKER_ID], directories=[directory], leader=BROKER_ID)
                records: list[Record] = [topic(), replica]
                state = cluster.cache.state
                state.replay(records, offset=state.offset + 1, epoch=1, delta=MetadataDelta())
            answers.append(cluster.is_agreed_to(*asked))
    assert answers == [False, False, True]


async def test_telemetry_level_is_set_and_reset_by_dynamic_config_of_the_broker(
    tmp_path: Path,
) -> None:
    levels = list[str]()
    async with wiring_on(tmp_path, Environment(set_telemetry_level=levels.append)) as wiring:
        cluster = wiring.cluster
        for value in ("debug", None):
            record = ConfigRecord(
                resource_type=ResourceType.BROKER,
                resource_name=str(BROKER_ID),
                name="telemetry.level",
                value=value,
            )
            state = cluster.cache.state
            state.replay([record], offset=state.offset + 1, epoch=1, delta=MetadataDelta())
            cluster.dynamic_configs.refresh()
    assert levels == ["debug", "info"]
