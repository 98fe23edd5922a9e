"""UpdateFeatures in all of Kafka's versions."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.kafka_codec import message
from kraftjbod.protocol.rpc_messages import (
    FeatureOutcome,
    FeatureUpdate,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequestRpc,
    UpdateFeaturesResponseRpc,
)
from tests.unit.broker.broker_rig import accept, brokers

UPDATE = message("UpdateFeaturesRequest")
UPGRADE, SAFE_DOWNGRADE = 1, 2


def answer(request: RpcRequest) -> RpcResponse:
    """Reject levels above 20."""
    if not isinstance(request, UpdateFeaturesRequestRpc):
        return accept(request)
    outcomes = []
    for update in request.updates:
        code = ErrorCode.INVALID_UPDATE_VERSION if update.level > 20 else ErrorCode.NONE
        outcomes.append(FeatureOutcome(name=update.name, error_code=code, error_message="too high"))
    return UpdateFeaturesResponseRpc(results=tuple(outcomes))


def update(level: int, **more: Any) -> Any:
    return UPDATE.FeatureUpdateKey(feature="metadata.version", max_version_level=level, **more)


@pytest.mark.parametrize("version", [1, 2])
async def test_update_features_forwards_updates_to_the_controller(version: int) -> None:
    async with brokers(answer=answer) as (rig,):
        request = UPDATE(feature_updates=[update(14, upgrade_type=3)], validate_only=True)
        response = await rig.ask(request, version)
        assert response.error_code == 0
        assert rig.controller.seen == [
            UpdateFeaturesRequestRpc(
                updates=(FeatureUpdate(name="metadata.version", level=14, upgrade_type=3),),
                validate_only=True,
            )
        ]


@pytest.mark.parametrize(("allowed", "kind"), [(False, UPGRADE), (True, SAFE_DOWNGRADE)])
async def test_update_features_version_0_maps_allow_downgrade_to_upgrade_type(
    allowed: bool, kind: int
) -> None:
    async with brokers(answer=answer) as (rig,):
        await rig.ask(UPDATE(feature_updates=[update(-1, allow_downgrade=allowed)]), 0)
        (forwarded,) = rig.controller.seen
        assert isinstance(forwarded, UpdateFeaturesRequestRpc)
        assert (forwarded.updates[0].upgrade_type, forwarded.updates[0].level) == (kind, 0)


async def test_update_features_error_is_per_feature_before_version_2_and_top_level_since() -> None:
    async with brokers(answer=answer) as (rig,):
        request = UPDATE(feature_updates=[update(99)])
        old, new = await rig.ask(request, 1), await rig.ask(request, 2)
        assert (old.error_code, old.results[0].error_code) == (0, ErrorCode.INVALID_UPDATE_VERSION)
        assert old.results[0].error_message == "too high"
        assert new.error_code == ErrorCode.INVALID_UPDATE_VERSION
        assert new.error_message == "too high"


async def test_update_features_top_level_error_is_that_of_the_faulty_feature() -> None:
    def fail_second_feature(request: RpcRequest) -> RpcResponse:
        codes = (ErrorCode.FEATURE_UPDATE_FAILED, ErrorCode.INVALID_UPDATE_VERSION)
        outcomes = (FeatureOutcome(name="f", error_code=c, error_message=c.name) for c in codes)
        return UpdateFeaturesResponseRpc(results=tuple(outcomes))

    async with brokers(answer=fail_second_feature) as (rig,):
        response = await rig.ask(UPDATE(feature_updates=[update(17), update(18)]))
        assert response.error_message == "INVALID_UPDATE_VERSION"


@pytest.mark.parametrize(
    ("updates", "why"),
    [
        pytest.param([update(17, upgrade_type=9)], "upgrade type 9", id="unknown type"),
        pytest.param([update(17)] * 101, "at most 100", id="too many"),
    ],
)
async def test_update_features_invalid_request_is_rejected_by_the_broker(
    updates: list[Any], why: str
) -> None:
    async with brokers(answer=answer) as (rig,):
        response = await rig.ask(UPDATE(feature_updates=updates))
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert why in response.error_message
        assert rig.controller.seen == []


async def test_update_features_controller_error_is_returned_in_the_response() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        raise OperatingError("ask later", code=ErrorCode.POLICY_VIOLATION)

    async with brokers(answer=refuse) as (rig,):
        response = await rig.ask(UPDATE(feature_updates=[update(17)]))
        assert (response.error_code, response.error_message) == (44, "ask later")
