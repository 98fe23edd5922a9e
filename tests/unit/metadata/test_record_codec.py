"""Encoding of metadata records and entries."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.core.ids import MIGRATING_DIR, BrokerId, DirectoryId, TopicId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.core.scram import ScramMechanism
from kraftjbod.metadata import record_codec as c
from kraftjbod.metadata import records as r

BEFORE, JBOD, CORDON, CONTROLLERS, ACCESS = MetadataVersion
A = DirectoryId(b"a" * 16)

_uuids = st.binary(min_size=16, max_size=16)
_dirs = st.lists(_uuids.map(DirectoryId), max_size=4).map(tuple)
_brokers = st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(tuple)
_listeners = st.lists(
    st.builds(r.Listener, name=st.text(), host=st.text(), port=st.integers(1, 65535)), max_size=2
).map(tuple)
_entities = st.lists(st.tuples(st.text(), st.none() | st.text()), max_size=2).map(tuple)
#: Strategies for fields whose values their annotations do not determine.
_BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "incarnation_id": _uuids.map(Uuid),
    "directory_id": _uuids.map(DirectoryId),
    "acl_id": _uuids.map(Uuid),
    "mechanism": st.sampled_from(ScramMechanism),
    "salt": st.binary(max_size=40),
    "stored_key": st.binary(max_size=40),
    "server_key": st.binary(max_size=40),
    "iterations": st.integers(0, 20_000),
    "binding": st.builds(
        AclBinding,
        st.sampled_from(AclResourceType),
        st.text(),
        st.sampled_from(AclPatternType),
        st.text(),
        st.text(),
        st.sampled_from(AclOperation),
        st.sampled_from(AclPermission),
    ),
    "software_version": st.text(),
    "metadata_log_id": _uuids.map(Uuid),
    "topic_id": _uuids.map(TopicId),
    "log_dirs": _dirs,
    "offline_log_dirs": _dirs,
    "directories": _dirs,
    "replicas": _brokers,
    "isr": _brokers,
    "elr": _brokers,
    "last_known_elr": _brokers,
    "previous_broker_epoch": st.integers(0, 2**63 - 1),
    "listeners": _listeners,
    "log_dir_paths": st.lists(st.text(), max_size=3).map(tuple),
    "cordoned_log_dirs": _dirs,
    "impaired_log_dirs": st.lists(
        st.builds(r.ImpairedLogDir, _uuids.map(DirectoryId), st.sampled_from(LogDirState)),
        max_size=2,
    ).map(tuple),
    "adding_replicas": _brokers,
    "removing_replicas": _brokers,
    "features": st.lists(
        st.builds(r.FeatureRange, st.text(), st.integers(0, 99), st.integers(0, 99)), max_size=2
    ).map(tuple),
    "resource_type": st.sampled_from(r.ResourceType),
    "rack": st.none() | st.text(),
    "value": st.none() | st.text(),
    "name": st.text(),
    "resource_name": st.text(),
}
_FLAGS = {"fenced", "in_controlled_shutdown", "leader_recovering"}
_ALL_RECORDS = (
    r.RegisterBrokerRecord,
    r.BrokerRegistrationChangeRecord,
    r.TopicRecord,
    r.RemoveTopicRecord,
    r.PartitionRecord,
    r.PartitionChangeRecord,
    r.ConfigRecord,
    r.FeatureLevelRecord,
    r.ProducerIdsRecord,
    r.RegisterControllerRecord,
    r.UnregisterControllerRecord,
    r.AccessControlEntryRecord,
    r.RemoveAccessControlEntryRecord,
    r.UserScramCredentialRecord,
    r.RemoveUserScramCredentialRecord,
    r.ClientQuotaRecord,
)


def _records_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    if kind is r.ClientQuotaRecord:
        return st.builds(
            kind, entity=_entities, key=st.text(), value=st.none() | st.floats(allow_nan=False)
        )
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in dataclasses.fields(kind):
        plain = st.booleans() if field.name in _FLAGS else st.integers(-1, 2**40)
        values = _BY_FIELD.get(field.name, plain)
        fields[field.name] = st.none() | values if field.default is None else values
    return st.builds(kind, **fields)


_entries = st.lists(st.one_of([_records_of(kind) for kind in _ALL_RECORDS]), max_size=8)


@given(_entries)
def test_decode_entry_returns_the_encoded_records(records: list[r.Record]) -> None:
    decoded = c.decode_entry(c.encode_entry(records, LATEST_METADATA_VERSION))
    assert decoded == tuple(records)
    assert [type(record) for record in decoded] == [type(record) for record in records]


@given(_entries, st.integers(1, 5))
def test_encode_entry_in_slices_yields_the_bytes_of_encode_entry(
    records: list[r.Record], slice_records: int
) -> None:
    level = LATEST_METADATA_VERSION
    slices = c.encode_entry_in_slices(iter(records), len(records), slice_records, level)
    assert b"".join(slices) == c.encode_entry(records, level)


@given(st.binary(max_size=200))
def test_decode_entry_of_random_bytes_raises_only_remote_protocol_error(payload: bytes) -> None:
    try:
        c.decode_entry(payload)
    except RemoteProtocolError:
        return


def test_metadata_log_id_is_ignored_by_software_without_log_ids() -> None:
    record = r.FeatureLevelRecord(
        name="metadata.version", feature_level=17, metadata_log_id=Uuid(b"l" * 16)
    )
    (kind, version, values), *_ = msgpack.unpackb(
        c.encode_entry([record], MetadataVersion.IV_3_6_IV2)
    )
    # Older software knows version 0 and two values, and skips the values after them.
    assert (kind, version, values[:2]) == (12, 0, ["metadata.version", 17])
    before = msgpack.packb([[kind, version, values[:2]]])
    assert c.decode_entry(before) == (dataclasses.replace(record, metadata_log_id=None),)


def test_decode_entry_rejects_a_newer_record_version() -> None:
    payload = msgpack.packb([[r.TopicRecord.TYPE, r.TopicRecord.VERSION + 1, ["t", bytes(16)]]])
    with pytest.raises(RemoteProtocolError, match="is newer than"):
        c.decode_entry(payload)


def test_decode_entry_fills_missing_fields_with_defaults() -> None:
    record = _registration()
    ((number, version, values),) = msgpack.unpackb(c.encode_entry([record], BEFORE))
    older = msgpack.packb([[number, version, values[:7]]])
    assert c.decode_entry(older) == (record,)


def test_encode_entry_rejects_values_that_are_no_records() -> None:
    with pytest.raises(LocalProtocolError, match="str is not a metadata record"):
        c.encode_entry(["t"], BEFORE)  # type: ignore[list-item]


@given(_entries, st.integers(1, 200))
def test_entry_reader_returns_the_same_records_for_any_division_into_pieces(
    records: list[r.Record], size: int
) -> None:
    whole = c.encode_entry(records, LATEST_METADATA_VERSION)
    reader, found = c.EntryReader(), list[r.Record]()
    for at in range(0, len(whole), size):
        found += reader.feed(whole[at : at + size])
    reader.end()
    assert found == records


@pytest.mark.parametrize("data", [b"", b"\x92", b"\xc1", b"\x91\x01", b"\xa3abc"])
def test_entry_reader_rejects_pieces_that_are_no_entry(data: bytes) -> None:
    reader = c.EntryReader()
    with pytest.raises(RemoteProtocolError):
        reader.feed(data)
        reader.end()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a metadata entry ends before its number of records"),
        (b"\x92", "a metadata entry lacks 2 records"),
    ],
)
def test_entry_reader_names_what_an_incomplete_entry_lacks(data: bytes, reason: str) -> None:
    reader = c.EntryReader()
    reader.feed(data)
    with pytest.raises(RemoteProtocolError, match=f"^{reason}$"):
        reader.end()


@given(_entries, st.integers(1, 500))
def test_encode_entries_makes_entries_of_limited_size_or_of_one_record(
    records: list[r.Record], max_bytes: int
) -> None:
    entries = c.encode_entries(records, LATEST_METADATA_VERSION, max_bytes)
    assert [one for part, _ in entries for one in part] == records
    for part, payload in entries:
        assert c.decode_entry(payload) == tuple(part)
        assert len(payload) <= max_bytes or len(part) == 1


def _registration(**fields: Any) -> r.RegisterBrokerRecord:
    return r.RegisterBrokerRecord(
        broker_id=1,  # type: ignore[arg-type]  # the types vanish on the wire
        broker_epoch=2,  # type: ignore[arg-type]
        incarnation_id=Uuid(bytes(16)),
        listeners=(),
        rack=None,
        fenced=True,
        in_controlled_shutdown=False,
        **fields,
    )


def _change(**fields: Any) -> r.BrokerRegistrationChangeRecord:
    return r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, **fields)  # type: ignore[arg-type]


def _partition(*directories: DirectoryId) -> r.PartitionRecord:
    return r.PartitionRecord(
        topic_id=TopicId(bytes(16)),
        partition_id=0,
        replicas=(1, 2),  # type: ignore[arg-type]
        directories=directories,
        isr=(1, 2),  # type: ignore[arg-type]
        leader=1,  # type: ignore[arg-type]
        leader_epoch=0,  # type: ignore[arg-type]
        partition_epoch=0,  # type: ignore[arg-type]
    )


def _partition_change(**fields: Any) -> r.PartitionChangeRecord:
    return r.PartitionChangeRecord(topic_id=TopicId(bytes(16)), partition_id=0, **fields)


@pytest.mark.parametrize(
    ("record", "level", "version"),
    [
        (_registration(), BEFORE, 2),
        (_registration(log_dirs=(A,), offline_log_dirs=(A,), log_dir_paths=("/a", "")), JBOD, 3),
        (_registration(log_dirs=(A,), cordoned_log_dirs=(A,)), CORDON, 4),
        (_change(fenced=True), BEFORE, 0),
        (_change(in_controlled_shutdown=True), BEFORE, 1),
        (_change(fenced=True, log_dirs=(A,)), JBOD, 2),
        (_change(cordoned_log_dirs=()), CORDON, 3),
        (_partition(), BEFORE, 0),
        (_partition(A, MIGRATING_DIR), JBOD, 1),
        (_partition_change(isr=(1,)), BEFORE, 0),
        (_partition_change(directories=(A,)), JBOD, 1),
    ],
)
def test_encode_entry_uses_the_version_required_by_content_and_metadata_version(
    record: r.Record, level: MetadataVersion, version: int
) -> None:
    payload = c.encode_entry([record], level)
    ((_, written, _),) = msgpack.unpackb(payload)
    assert written == version
    assert c.decode_entry(payload) == (record,)


@pytest.mark.parametrize(
    ("record", "level", "what"),
    [
        (_registration(log_dirs=(A,)), BEFORE, "log_dirs"),
        (_registration(log_dir_paths=("/a",)), BEFORE, "log_dir_paths"),
        (_registration(log_dirs=(A,), cordoned_log_dirs=(A,)), JBOD, "cordoned_log_dirs"),
        (_change(log_dirs=(A,)), BEFORE, "log_dirs"),
        (_change(cordoned_log_dirs=()), JBOD, "cordoned_log_dirs"),
        (_partition(A, MIGRATING_DIR), BEFORE, "directories"),
        (_partition_change(directories=(A,)), BEFORE, "directories"),
    ],
)
def test_encode_entry_rejects_fields_that_the_metadata_version_cannot_carry(
    record: r.Record, level: MetadataVersion, what: str
) -> None:
    """Kafka wrote wrong directories at an old level (KAFKA-16583, KAFKA-16606)."""
    with pytest.raises(LocalProtocolError, match=f"says {what}, which metadata.version {level}"):
        c.encode_entry([record], level)


@pytest.mark.parametrize(
    ("record", "below", "least"),
    [
        (r.UnregisterControllerRecord(controller_id=BrokerId(100)), CORDON, CONTROLLERS),
        (r.RemoveAccessControlEntryRecord(acl_id=Uuid(bytes(16))), CONTROLLERS, ACCESS),
        (
            r.RemoveUserScramCredentialRecord(name="a", mechanism=ScramMechanism.SCRAM_SHA_256),
            CONTROLLERS,
            ACCESS,
        ),
    ],
)
def test_encode_entry_rejects_a_record_type_above_the_metadata_version(
    record: r.Record, below: MetadataVersion, least: MetadataVersion
) -> None:
    name = type(record).__name__
    with pytest.raises(LocalProtocolError, match=f"{below.value} cannot carry {name}"):
        c.encode_entry([record], below)
    assert c.decode_entry(c.encode_entry([record], least)) == (record,)


def test_encode_entry_omits_migrating_directories_below_their_metadata_version() -> None:
    payload = c.encode_entry([_partition(MIGRATING_DIR, MIGRATING_DIR)], BEFORE)
    assert c.decode_entry(payload) == (_partition(),)
