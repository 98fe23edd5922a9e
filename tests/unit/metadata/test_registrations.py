"""``BrokerRegistration`` and ``PartitionRegistration``: values that records build."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    NO_LEADER,
    UNASSIGNED_DIR,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ImpairedLogDir,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration

ONE, TWO = BrokerId(1), BrokerId(2)
A, B, C = (DirectoryId(bytes([9] * 15 + [n])) for n in range(3))
TOPIC = TopicId(bytes(16))


def _broker(*log_dirs: DirectoryId) -> BrokerRegistration:
    return BrokerRegistration.from_record(
        RegisterBrokerRecord(
            broker_id=ONE,
            broker_epoch=BrokerEpoch(5),
            incarnation_id=Uuid(bytes(16)),
            listeners=(),
            rack=None,
            fenced=False,
            in_controlled_shutdown=False,
            log_dirs=log_dirs,
        )
    )


def _change(**fields: object) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=ONE,
        broker_epoch=BrokerEpoch(5),
        **fields,  # type: ignore[arg-type]  # any of the record's
    )


def _partition(directories: tuple[DirectoryId, ...] = (A, B)) -> PartitionRegistration:
    return PartitionRegistration.from_record(
        PartitionRecord(
            topic_id=TOPIC,
            partition_id=0,
            replicas=(ONE, TWO),
            directories=directories,
            isr=(ONE, TWO),
            leader=ONE,
            leader_epoch=LeaderEpoch(3),
            partition_epoch=PartitionEpoch(7),
        )
    )


def _partition_change(**fields: object) -> PartitionChangeRecord:
    return PartitionChangeRecord(topic_id=TOPIC, partition_id=0, **fields)  # type: ignore[arg-type]


def test_broker_registration_sorts_its_directories() -> None:
    assert _broker(C, A, B).log_dirs == (A, B, C)


def test_broker_registration_remembers_removed_directories_as_offline() -> None:
    broker = _broker(A, B, C).merge(_change(log_dirs=(C, B))).merge(_change(log_dirs=(C,)))
    assert (broker.log_dirs, broker.offline_log_dirs) == ((C,), (A, B))
    assert broker.known_log_dirs == {A, B, C}
    assert BrokerRegistration.from_record(broker.to_record()) == broker


def test_broker_registration_merge_ignores_fields_that_are_none() -> None:
    assert _broker(A).merge(_change()) == _broker(A)


def test_broker_registration_merge_of_another_epoch_is_an_assertion_error() -> None:
    change = BrokerRegistrationChangeRecord(broker_id=ONE, broker_epoch=BrokerEpoch(6))
    with pytest.raises(AssertionError):
        _broker(A).merge(change)


def test_broker_registration_is_active_unless_fenced_or_in_controlled_shutdown() -> None:
    assert _broker(A).is_active
    assert not _broker(A).merge(_change(fenced=True)).is_active
    assert not _broker(A).merge(_change(in_controlled_shutdown=True)).is_active


@pytest.mark.parametrize(
    ("registered", "offline", "asked", "is_online"),
    [
        pytest.param((A, B), (), A, True, id="registered"),
        pytest.param((A, B), (A,), A, False, id="failed"),
        pytest.param((A, B), (), C, False, id="unknown"),
        pytest.param((A, B), (), UNASSIGNED_DIR, True, id="unassigned"),
        pytest.param((A, B), (), MIGRATING_DIR, True, id="migrating"),
        pytest.param((A, B), (), LOST_DIR, False, id="lost"),
        pytest.param((), (), C, True, id="broker without directory ids"),
        pytest.param((), (), LOST_DIR, False, id="lost without directories"),
        pytest.param((A,), (A,), UNASSIGNED_DIR, False, id="all failed"),
    ],
)
def test_has_online_dir_for_each_kind_of_directory_id(
    registered: tuple[DirectoryId, ...],
    offline: tuple[DirectoryId, ...],
    asked: DirectoryId,
    is_online: bool,
) -> None:
    left = tuple(directory for directory in registered if directory not in offline)
    assert _broker(*registered).merge(_change(log_dirs=left)).has_online_dir(asked) is is_online


def test_partition_merge_raises_the_partition_epoch_and_on_leader_change_the_leader_epoch() -> None:
    shrunk = _partition().merge(_partition_change(isr=(ONE,)))
    assert (shrunk.leader_epoch, shrunk.partition_epoch, shrunk.isr) == (3, 8, (ONE,))
    same_leader = shrunk.merge(_partition_change(leader=ONE))
    assert (same_leader.leader_epoch, same_leader.partition_epoch) == (4, 9)


def test_partition_merge_without_leader_is_a_leader_change() -> None:
    gone = _partition().merge(_partition_change(leader=NO_LEADER))
    assert not gone.has_leader
    assert gone.leader_epoch == 4


def test_partition_merge_requires_directories_with_replicas() -> None:
    with pytest.raises(AssertionError):
        _partition().merge(_partition_change(replicas=(ONE,)))
    moved = _partition().merge(_partition_change(replicas=(TWO,), directories=(C,)))
    assert moved.directory_of(TWO) == C
    assert moved.directory_of(ONE) is None


def test_partition_without_directories_is_migrating() -> None:
    assert _partition(()).directories == (MIGRATING_DIR, MIGRATING_DIR)


def test_partition_to_record_and_back_is_equal() -> None:
    partition = _partition().merge(_partition_change(leader_recovering=True))
    record = partition.to_record(TOPIC, 0)
    assert PartitionRegistration.from_record(record) == partition
    assert partition.preferred_leader == ONE


def test_partition_merge_of_replicas_without_directories_is_migrating() -> None:
    """Records without directory support have no directories."""
    moved = _partition((MIGRATING_DIR, MIGRATING_DIR)).merge(_partition_change(replicas=(ONE,)))
    assert (moved.replicas, moved.directories) == ((ONE,), (MIGRATING_DIR,))


def test_broker_registration_keeps_paths_with_their_directories() -> None:
    record = dataclasses.replace(
        _broker(A, B, C).to_record(), log_dirs=(C, A, B), log_dir_paths=("/c", "/a", "")
    )
    broker = BrokerRegistration.from_record(record)
    assert broker.log_dir_paths == {A: "/a", C: "/c"}
    lost = broker.merge(_change(log_dirs=(B, C)))
    assert lost.log_dir_paths == {A: "/a", C: "/c"}
    assert lost.to_record().log_dir_paths == ("", "/c", "/a")
    assert BrokerRegistration.from_record(lost.to_record()) == lost


@pytest.mark.parametrize(
    ("online", "cordoned", "takes"),
    [
        ((A, B), (), True),
        ((A, B), (A,), True),
        ((A, B), (A, B), False),
        ((A,), (A, B), False),
        ((), (), False),
    ],
)
def test_takes_new_replicas_unless_all_online_directories_are_cordoned(
    online: tuple[DirectoryId, ...], cordoned: tuple[DirectoryId, ...], takes: bool
) -> None:
    broker = _broker(A, B).merge(_change(log_dirs=online, cordoned_log_dirs=cordoned))
    assert broker.takes_new_replicas is takes


FULL_A = ImpairedLogDir(A, LogDirState.SATURATED)
HUNG_B = ImpairedLogDir(B, LogDirState.STALLED)


def test_impaired_directory_is_online_and_its_impairment_ends_when_offline() -> None:
    broker = _broker(A, B).merge(_change(impaired_log_dirs=(HUNG_B, FULL_A)))
    assert broker.impaired_log_dirs == (FULL_A, HUNG_B)
    assert broker.has_online_dir(A)
    assert broker.merge(_change(fenced=True)).impaired_log_dirs == (FULL_A, HUNG_B)
    lost = broker.merge(_change(log_dirs=(B,)))
    assert lost.impaired_log_dirs == (HUNG_B,)
    assert lost.merge(_change(impaired_log_dirs=())).impaired_log_dirs == ()


@pytest.mark.parametrize(
    ("impaired", "cordoned", "left", "closed"),
    [
        ((), (), (A, B), ()),
        ((FULL_A,), (), (B,), (A,)),
        ((FULL_A, HUNG_B), (), (), (A, B)),
        ((FULL_A,), (B,), (), (A,)),
        ((FULL_A,), (A,), (B,), ()),
    ],
)
def test_dirs_for_new_replicas_excludes_impaired_and_cordoned_directories(
    impaired: tuple[ImpairedLogDir, ...],
    cordoned: tuple[DirectoryId, ...],
    left: tuple[DirectoryId, ...],
    closed: tuple[DirectoryId, ...],
) -> None:
    broker = _broker(A, B).merge(_change(impaired_log_dirs=impaired, cordoned_log_dirs=cordoned))
    assert broker.dirs_for_new_replicas == left
    assert broker.takes_new_replicas is bool(left)
    assert broker.dirs_closed_by_impairment == closed


def test_takes_new_replicas_for_a_broker_without_directory_ids() -> None:
    assert _broker().takes_new_replicas


def test_broker_registration_at_level_drops_unsupported_fields() -> None:
    broker = _broker(A, B).merge(_change(log_dirs=(B,), cordoned_log_dirs=(B,)))
    without_cordons = broker.at_level(MetadataVersion.IV_3_7_IV2)
    assert without_cordons == dataclasses.replace(broker, cordoned_log_dirs=())
    assert broker.at_level(MetadataVersion.IV_4_3_IV0) == broker
    assert broker.at_level(MetadataVersion.IV_3_6_IV2) == _broker()
