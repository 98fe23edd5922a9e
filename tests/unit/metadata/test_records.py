"""Metadata records and their encoding."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.core.ids import DirectoryId, TopicId, Uuid
from kraftjbod.metadata import records as r

_uuids = st.binary(min_size=16, max_size=16)
_dirs = st.lists(_uuids.map(DirectoryId), max_size=4).map(tuple)
_brokers = st.lists(st.integers(-1, 2**31 - 1), max_size=4).map(tuple)
_listeners = st.lists(
    st.builds(r.Listener, name=st.text(), host=st.text(), port=st.integers(1, 65535)), max_size=2
).map(tuple)
#: Fields whose values cannot be told from their annotations alone.
_BY_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "incarnation_id": _uuids.map(Uuid),
    "topic_id": _uuids.map(TopicId),
    "log_dirs": _dirs,
    "offline_log_dirs": _dirs,
    "directories": _dirs,
    "replicas": _brokers,
    "isr": _brokers,
    "listeners": _listeners,
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
)


def _records_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in dataclasses.fields(kind):
        plain = st.booleans() if field.name in _FLAGS else st.integers(-1, 2**40)
        values = _BY_FIELD.get(field.name, plain)
        fields[field.name] = values if field.default is dataclasses.MISSING else st.none() | values
        if field.name in ("offline_log_dirs", "leader_recovering") and field.default is not None:
            fields[field.name] = values
    return st.builds(kind, **fields)


_entries = st.lists(st.one_of([_records_of(kind) for kind in _ALL_RECORDS]), max_size=8)


@given(_entries)
def test_what_is_encoded_is_decoded(records: list[r.Record]) -> None:
    decoded = r.decode_entry(r.encode_entry(records))
    assert decoded == tuple(records)
    assert [type(record) for record in decoded] == [type(record) for record in records]


@given(_entries, st.integers(1, 5))
def test_slices_are_the_same_bytes(records: list[r.Record], slice_records: int) -> None:
    slices = r.encode_entry_in_slices(iter(records), len(records), slice_records)
    assert b"".join(slices) == r.encode_entry(records)


@given(st.binary(max_size=200))
def test_rubbish_is_refused_with_one_kind_of_error(payload: bytes) -> None:
    try:
        r.decode_entry(payload)
    except RemoteProtocolError:
        return


def test_a_newer_version_is_refused() -> None:
    payload = msgpack.packb([[r.TopicRecord.TYPE, r.TopicRecord.VERSION + 1, ["t", bytes(16)]]])
    with pytest.raises(RemoteProtocolError, match="is newer than"):
        r.decode_entry(payload)


def test_fields_that_an_older_version_lacks_get_their_defaults() -> None:
    record = r.RegisterBrokerRecord(
        broker_id=1,  # type: ignore[arg-type]  # the types vanish on the wire
        broker_epoch=2,  # type: ignore[arg-type]
        incarnation_id=Uuid(bytes(16)),
        listeners=(),
        rack=None,
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=(),
    )
    ((number, version, values),) = msgpack.unpackb(r.encode_entry([record]))
    older = msgpack.packb([[number, version - 1, values[:-1]]])
    assert r.decode_entry(older) == (record,)


def test_types_are_unique() -> None:
    assert len({kind.TYPE for kind in _ALL_RECORDS}) == len(_ALL_RECORDS)


def test_only_records_are_encoded() -> None:
    with pytest.raises(LocalProtocolError, match="str is not a metadata record"):
        r.encode_entry(["t"])  # type: ignore[list-item]


def test_an_entry_that_is_too_long_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="too long"):
        r.decode_entry(bytes(64 * 1024 * 1024 + 1))
