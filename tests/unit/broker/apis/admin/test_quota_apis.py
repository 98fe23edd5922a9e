"""AlterClientQuotas and DescribeClientQuotas: conversions, filters and errors.

The controller's decisions are those of the real control managers.
"""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.apis.admin.quota_apis import QuotaApis
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.protocol.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest
from tests.unit.broker.apis.admin.test_scram_apis import CONTEXT, Controller

Entity = tuple[tuple[str, str | None], ...]
ALICE, APP = ("user", "alice"), ("client-id", "app")
ANY_USER = ("user", None)
PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
EXACT, DEFAULT, ANY = 0, 1, 2


def controller() -> Any:
    made: Any = Controller()
    list(made.world.run(f"feature {LATEST_METADATA_VERSION.value}"))
    return made


def apis_of(one: Any) -> QuotaApis:
    return QuotaApis(cache=one, channel=one, timeout_ms=1000)


async def alter(
    one: Any, *changes: tuple[Entity, dict[str, float | None]], validate_only: bool = False
) -> list[tuple[Entity, int]]:
    kinds = AlterClientQuotasRequest
    entries = [
        kinds.EntryData(
            entity=[kinds.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[
                kinds.OpData(key=key, value=value or 0.0, remove=value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in changes
    ]
    request = kinds(entries=entries, validate_only=validate_only)
    answer = await apis_of(one).alter_client_quotas(request, CONTEXT)
    return [
        (tuple((e.entity_type, e.entity_name) for e in entry.entity), entry.error_code)
        for entry in answer.entries
    ]


async def describe(
    one: Any, *components: tuple[str, int, str | None], strict: bool = False
) -> tuple[int, dict[Entity, dict[str, float]] | None]:
    kinds = DescribeClientQuotasRequest
    request = kinds(
        components=[
            kinds.ComponentData(entity_type=kind, match_type=match_type, match=name)
            for kind, match_type, name in components
        ],
        strict=strict,
    )
    answer = await apis_of(one).describe_client_quotas(request, CONTEXT)
    if answer.entries is None:
        return answer.error_code, None
    return answer.error_code, {
        tuple((e.entity_type, e.entity_name) for e in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


async def test_describe_client_quotas_returns_altered_quotas_that_match_the_filter() -> None:
    one = controller()
    assert await alter(
        one, ((ALICE, APP), {PRODUCE: 10.0, CONSUME: 20.0}), ((ANY_USER,), {PRODUCE: 5.0})
    ) == [((ALICE, APP), 0), ((ANY_USER,), 0)]
    both: Entity = (APP, ALICE)
    everything = {both: {CONSUME: 20.0, PRODUCE: 10.0}, (ANY_USER,): {PRODUCE: 5.0}}
    assert await describe(one) == (0, everything)
    assert await describe(one, ("user", ANY, None)) == (0, everything)
    assert await describe(one, ("user", EXACT, "alice")) == (0, {both: everything[both]})
    assert await describe(one, ("user", EXACT, "alice"), strict=True) == (0, {})
    assert await describe(one, ("user", DEFAULT, None)) == (0, {(ANY_USER,): {PRODUCE: 5.0}})
    assert await describe(one, ("ip", ANY, None)) == (0, {})
    assert await alter(one, ((APP, ALICE), {PRODUCE: None, CONSUME: None})) == [(both, 0)]
    assert await describe(one) == (0, {(ANY_USER,): {PRODUCE: 5.0}})


async def test_alter_client_quotas_refuses_only_repeated_and_invalid_entities() -> None:
    one = controller()
    assert await alter(
        one,
        ((ALICE,), {PRODUCE: 5.0}),
        ((ALICE,), {PRODUCE: 6.0}),
        (((("group", "g")),), {PRODUCE: 5.0}),
        ((ANY_USER,), {PRODUCE: float("nan")}),
        ((APP,), {PRODUCE: 7.0}),
    ) == [
        ((ALICE,), 42),
        ((ALICE,), 42),
        ((("group", "g"),), 42),
        ((ANY_USER,), 42),
        ((APP,), 0),
    ]
    assert await describe(one) == (0, {(APP,): {PRODUCE: 7.0}})


async def test_alter_client_quotas_refuses_an_entity_with_twenty_thousand_operations() -> None:
    one = controller()
    operation = AlterClientQuotasRequest.OpData(key=PRODUCE, value=5.0)
    entity = AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="alice")
    entry = AlterClientQuotasRequest.EntryData(entity=[entity], ops=[operation] * 20_000)
    request = AlterClientQuotasRequest(entries=[entry])
    answer = await apis_of(one).alter_client_quotas(request, CONTEXT)
    assert [result.error_code for result in answer.entries] == [ErrorCode.INVALID_REQUEST]


async def test_alter_client_quotas_with_validate_only_changes_nothing() -> None:
    one = controller()
    assert await alter(one, ((ALICE,), {PRODUCE: 5.0}), validate_only=True) == [((ALICE,), 0)]
    assert await describe(one) == (0, {})


async def test_alter_client_quotas_without_a_controller_times_out_per_entity() -> None:
    one = controller()
    one.is_silent = True
    answered = await alter(one, ((ALICE,), {PRODUCE: 5.0}), ((APP,), {PRODUCE: 5.0}))
    assert answered == [(entity, ErrorCode.REQUEST_TIMED_OUT) for entity in ((ALICE,), (APP,))]
    assert await alter(one) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("group", EXACT, "g")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, "a"), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_describe_client_quotas_refuses_invalid_filters(
    components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert await describe(controller(), *components) == (code, None)
