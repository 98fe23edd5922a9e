"""LOOP. UpdateFeatures (KIP-584), forwarded to the controller.

The broker makes no decisions here, as in topic_apis.py. The controller returns one outcome per
feature. From version 2 on the response has only one error, which is then the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kraftjbod.broker.cluster.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol import rpc_messages
from kraftjbod.protocol.messages import UpdateFeaturesRequest, UpdateFeaturesResponse
from kraftjbod.protocol.rpc_messages import FeatureOutcome, FeatureUpdate

_UPGRADE: Final = 1
_SAFE_DOWNGRADE: Final = 2
_UPGRADE_TYPES: Final = range(1, 4)
_TYPED_SINCE: Final = 1
_ONE_ERROR_SINCE: Final = 2
_MAX_UPDATES: Final = 100


class FeatureApis:
    def __init__(self, *, channel: ControllerChannel) -> None:
        self._channel = channel

    async def update_features(
        self, request: UpdateFeaturesRequest, context: RequestContext
    ) -> UpdateFeaturesResponse:
        response = UpdateFeaturesResponse(error_message=None)
        try:
            forwarded = rpc_messages.UpdateFeaturesRequestRpc(
                updates=_updates(request, context.api_version),
                validate_only=request.validate_only,
            )
            answer = await self._channel.forward(
                forwarded, timeout_ms=forward_timeout_ms(request.timeout_ms)
            )
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
            return response
        if context.api_version >= _ONE_ERROR_SINCE:
            _put_error(response, answer.results)
        else:
            response.results = [
                UpdateFeaturesResponse.UpdatableFeatureResult(
                    feature=result.name,
                    error_code=result.error_code,
                    error_message=result.error_message,
                )
                for result in answer.results
            ]
        return response


def _updates(request: UpdateFeaturesRequest, version: int) -> tuple[FeatureUpdate, ...]:
    """Return the updates in the form of the controller's request.

    :raises OperatingError: INVALID_REQUEST: there are too many updates, or an upgrade type is
        unknown.
    """
    if len(request.feature_updates) > _MAX_UPDATES:
        raise OperatingError(
            f"{len(request.feature_updates)} features in one request; ask for at most "
            f"{_MAX_UPDATES} at a time",
            code=ErrorCode.INVALID_REQUEST,
        )
    updates = []
    for update in request.feature_updates:
        kind = update.upgrade_type
        if version < _TYPED_SINCE:
            kind = _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE
        if kind not in _UPGRADE_TYPES:
            raise OperatingError(
                f"feature {update.feature}: upgrade type {kind} is none of 1 (upgrade), "
                "2 (safe downgrade) and 3 (unsafe downgrade)",
                code=ErrorCode.INVALID_REQUEST,
            )
        # Kafka treats every level below 1 as the removal of the feature.
        level = max(0, update.max_version_level)
        updates.append(FeatureUpdate(name=update.feature, level=level, upgrade_type=kind))
    return tuple(updates)


def _put_error(response: UpdateFeaturesResponse, results: Sequence[FeatureOutcome]) -> None:
    refused = [result for result in results if result.error_code is not ErrorCode.NONE]
    # FEATURE_UPDATE_FAILED only says that another update was refused, so it comes last.
    refused.sort(key=lambda result: result.error_code is ErrorCode.FEATURE_UPDATE_FAILED)
    if refused:
        response.error_code = refused[0].error_code
        response.error_message = refused[0].error_message
