"""The table of rights has a row for each API."""

from __future__ import annotations

from kraftjbod.authorizer.api_rights import FORWARDED, KAFKA_APIS, MEMBERS_ONLY
from kraftjbod.protocol.kafka_codec import ApiKey, api_name
from kraftjbod.protocol.rpc_codec import REQUESTS


def test_rights_table_has_a_row_for_each_kafka_api() -> None:
    assert {api_name(key) for key in ApiKey} == KAFKA_APIS.keys()


def test_rights_table_classifies_each_rpc_request_as_forwarded_or_members_only() -> None:
    assert REQUESTS.keys() <= FORWARDED | MEMBERS_ONLY
    assert not FORWARDED & MEMBERS_ONLY
    assert KAFKA_APIS.keys() >= FORWARDED
