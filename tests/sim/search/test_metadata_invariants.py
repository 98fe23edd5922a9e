from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kraftjbod.core.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    Uuid,
)
from kraftjbod.core.metadata_version import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
)
from kraftjbod.metadata.records import (
    FeatureLevelRecord,
    FeatureRange,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from tests.sim.search.metadata_invariants import MetadataInvariants

_TOPIC = TopicId(bytes([9]) * 16)
_DIRS = tuple(DirectoryId(bytes([7] * 15 + [number])) for number in (1, 2, 3))
_IDS = tuple(map(BrokerId, (1, 2, 3)))
_PARTITION = PartitionRecord(
    topic_id=_TOPIC,
    partition_id=0,
    replicas=_IDS,
    directories=_DIRS,
    isr=_IDS,
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(0),
    partition_epoch=PartitionEpoch(0),
)


def _broker(broker_id: int, **fields: Any) -> RegisterBrokerRecord:
    record = RegisterBrokerRecord(
        broker_id=BrokerId(broker_id),
        broker_epoch=BrokerEpoch(broker_id),
        incarnation_id=Uuid(bytes([broker_id]) * 16),
        listeners=(),
        rack=None,
        fenced=False,
        in_controlled_shutdown=False,
        log_dirs=(_DIRS[broker_id - 1],),
    )
    return dataclasses.replace(record, **fields)


def _invariants(*entries: Record) -> tuple[MetadataInvariants, list[str]]:
    invariants = MetadataInvariants(lambda _state, _topic: 2)
    elr = FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=1)
    start = [elr, *map(_broker, (1, 2, 3)), TopicRecord(name="t", topic_id=_TOPIC)]
    findings = invariants.take(start, offset=0, epoch=1)
    for offset, record in enumerate(entries, 1):
        findings += invariants.take([record], offset=offset, epoch=1)
    return invariants, findings


def _change(**fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=_TOPIC, partition_id=0, **fields)


def test_legal_metadata_changes_are_not_reported() -> None:
    _, findings = _invariants(
        _PARTITION,
        _change(isr=(1, 2)),
        _change(isr=(2,), leader=2, elr=(1,)),
        _change(isr=(), leader=-1, elr=(1, 2), last_known_elr=(2,)),
        _change(isr=(1,), leader=1, elr=(2,), last_known_elr=()),
        _change(isr=(1, 2), elr=()),
    )
    assert findings == []


@pytest.mark.parametrize(
    ("before", "change", "finding"),
    [
        ((), _change(isr=(1, 4)), "in-sync and no replica"),
        ((), _change(isr=(2, 3)), "leader not in sync"),
        ((), _change(isr=(1,), elr=(1, 2)), "in sync and eligible"),
        ((), _change(elr=(3,), isr=(1, 2)), "eligible beside enough in sync"),
        ((), _change(leader=-1), "no leader, though some are in sync"),
        ((), _change(isr=(), leader=-1), "no replica is known to hold it"),
        ((_change(isr=(1, 2)),), _change(leader=3, isr=(3,)), "neither in sync nor eligible"),
        (
            (_change(isr=(1, 2)), _broker(3, fenced=True)),
            _change(isr=(1, 2, 3)),
            "broker 3 is in sync or leads, and is not there",
        ),
        (
            (_change(isr=(1, 2)), _broker(3, log_dirs=(_DIRS[0],))),
            _change(isr=(1, 2, 3)),
            "broker 3 is in sync or leads, and is not there",
        ),
    ],
)
def test_illegal_metadata_changes_are_found(
    before: tuple[Record, ...], change: Record, finding: str
) -> None:
    invariants, findings = _invariants(_PARTITION, *before)
    assert findings == []
    offset = invariants.state.offset + 1
    found = invariants.take([change], offset=offset, epoch=1)
    assert any(finding in one and f"metadata entry {offset}" in one for one in found), found


def test_entry_that_cannot_be_replayed_is_found() -> None:
    invariants, _ = _invariants()
    (found,) = invariants.take([_change(isr=(1,))], offset=9, epoch=1)
    assert "metadata entry 9 cannot be replayed" in found


def test_level_above_the_software_of_a_broker_is_found() -> None:
    older = (FeatureRange(METADATA_VERSION, 14, 30),)
    _, findings = _invariants(
        _broker(2, features=older),
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=30),
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=33),
    )
    assert findings == ["metadata entry 3: metadata.version is 33, and broker 2 supports 30"]


def test_partition_without_leader_keeps_in_sync_replica_only_without_eligible_ones() -> None:
    off = FeatureLevelRecord(name=ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=0)
    leaderless = _change(isr=(1,), leader=-1)
    _, findings = _invariants(_PARTITION, leaderless)
    assert "no leader, though some are in sync" in findings[0]
    _, findings = _invariants(off, _PARTITION, leaderless)
    assert findings == []
