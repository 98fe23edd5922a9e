"""``load_message``: schemas from Kafka's JSON."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kraftjbod.protocol.schemas.kafka_schema import NO_VERSIONS, Versions, load_message


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("3-12", [3, 12], [2, 13]), ("9+", [9, 99], [8]), ("4", [4], [3, 5]), ("none", [], [0, 1])],
)
def test_versions_parse_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    versions = Versions.parse(text)
    assert [v for v in inside if v not in versions] == []
    assert [v for v in outside if v in versions] == []


def test_load_message_reads_defaults_tags_and_structs() -> None:
    schema = load_message("FetchRequest")
    assert (schema.api_key, schema.flexible.first) == (1, 12)
    fields = {f.name: f for f in schema.struct.fields}
    assert fields["replica_id"].default == -1
    assert fields["max_bytes"].default == 0x7FFFFFFF
    assert fields["cluster_id"].default is None
    assert fields["topics"].default == ()
    state = fields["replica_state"]
    assert (state.type, state.tag, state.default, state.is_array) == ("struct", 1, None, False)
    assert 15 in state.tagged
    assert fields["session_id"].tagged is NO_VERSIONS
    topic = fields["topics"].struct
    assert topic is not None
    assert [f.name for f in topic.fields] == ["topic", "topic_id", "partitions"]


def test_load_message_reads_defaults_of_booleans_ids_and_strings() -> None:
    fields = {f.name: f for f in load_message("MetadataRequest").struct.fields}
    assert fields["allow_auto_topic_creation"].default is True
    assert fields["include_topic_authorized_operations"].default is False
    topic = fields["topics"].struct
    assert topic is not None
    assert [f.default for f in topic.fields] == [bytes(16), ""]


def test_load_message_of_unknown_name_raises_key_error() -> None:
    with pytest.raises(KeyError, match="NoSuchRequest"):
        load_message("NoSuchRequest")


def test_load_message_does_not_import_kafka_python() -> None:
    code = (
        "import sys; from kraftjbod.protocol.schemas.kafka_schema import load_message;"
        " load_message('FetchRequest'); sys.exit('kafka' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shared_struct_is_listed_once() -> None:
    schema = load_message("AddPartitionsToTxnRequest")
    names = [s.name for s in schema.struct.structs()]
    assert names == [
        "AddPartitionsToTxnTopic",
        "AddPartitionsToTxnTransaction",
        "AddPartitionsToTxnRequest",
    ]
    fields = {f.name: f for f in schema.struct.fields}
    of_old = fields["v3_and_below_topics"].struct
    assert of_old is not None and [f.name for f in of_old.fields] == ["name", "partitions"]
