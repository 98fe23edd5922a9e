"""``QuotaControlManager``: records of valid changes, and errors by entity."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.controller import quota_control
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.protocol.rpc_quota_messages import (
    AlterClientQuotasRequestRpc,
    QuotaChange,
    QuotaOp,
)
from tests.golden.transcript import World

ALICE, APP = ("user", "alice"), ("client-id", "app")
PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"


def world() -> World:
    made = World()
    list(made.run(f"feature {LATEST_METADATA_VERSION.value}"))
    return made


def change(*entity: tuple[str, str | None], **values: float | None) -> QuotaChange:
    ops = tuple(QuotaOp(key=key, value=value) for key, value in values.items())
    return QuotaChange(entity=entity, ops=ops)


def alter(world: World, *changes: QuotaChange, validate_only: bool = False) -> list[ErrorCode]:
    request = AlterClientQuotasRequestRpc(changes=changes, validate_only=validate_only)
    answer: Any = world.ask(request)
    return [one.error_code for one in answer.results]


def test_quotas_are_set_changed_and_removed() -> None:
    one = world()
    assert alter(one, change(ALICE, APP, **{PRODUCE: 10.0, CONSUME: 20.0}), change(ALICE)) == [0, 0]
    assert one.state.client_quotas == {(APP, ALICE): {PRODUCE: 10.0, CONSUME: 20.0}}
    assert alter(one, change(APP, ALICE, **{PRODUCE: 11.0, CONSUME: None})) == [0]
    assert one.state.client_quotas == {(APP, ALICE): {PRODUCE: 11.0}}
    offset = one.state.offset
    assert alter(one, change(APP, ALICE, **{PRODUCE: 11.0, CONSUME: None})) == [0]
    assert one.state.offset == offset, "nothing changed, so there is no record"
    assert alter(one, change(APP, ALICE, **{PRODUCE: None})) == [0]
    assert one.state.client_quotas == {}


def test_invalid_entities_are_refused_and_others_are_altered() -> None:
    one = world()
    assert alter(
        one,
        change(),
        change(ALICE, **{PRODUCE: 0.0}),
        change(("user", "bob"), **{PRODUCE: 5.0}),
        change(("user", "twice"), **{PRODUCE: 5.0}),
        change(("user", "twice"), **{PRODUCE: 6.0}),
        QuotaChange(
            entity=(("user", "keys"),),
            ops=(QuotaOp(key=PRODUCE, value=1.0), QuotaOp(key=PRODUCE, value=2.0)),
        ),
    ) == [42, 42, 0, 42, 42, 42]
    assert one.state.client_quotas == {(("user", "bob"),): {PRODUCE: 5.0}}


def test_validate_only_writes_nothing() -> None:
    one = world()
    assert alter(one, change(ALICE, **{PRODUCE: 5.0}), validate_only=True) == [0]
    assert alter(one, change(ALICE, **{PRODUCE: -5.0}), validate_only=True) == [42]
    assert one.state.client_quotas == {}


def test_quotas_below_their_metadata_version_are_refused() -> None:
    one = World()
    list(one.run("feature 33"))
    assert alter(one, change(ALICE, **{PRODUCE: 5.0})) == [ErrorCode.UNSUPPORTED_VERSION]


def test_entities_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_control, "MAX_ENTITIES", 2)
    one = world()
    users = [change(("user", name), **{PRODUCE: 5.0}) for name in "abc"]
    assert alter(one, *users) == [0, 0, ErrorCode.POLICY_VIOLATION]
    assert alter(one, change(("user", "a"), **{PRODUCE: 6.0})) == [0]
