"""WIRE. A cluster and its levels, asked of its controllers (``--bootstrap-controller``)."""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.cli.clients.cluster_admin import ClusterFeatures, FeatureDescription, UpgradeType
from kraftjbod.cli.clients.controller_client import ControllerClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.rpc_config_messages import UnregisterBrokerRequest
from kraftjbod.protocol.rpc_controller_messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribedController,
    UnregisterControllerRequest,
)
from kraftjbod.protocol.rpc_messages import (
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)


async def describe_cluster(client: ControllerClient) -> DescribeClusterResponse:
    """:raises OperatingError: UNSUPPORTED_VERSION, if the controllers are older than that."""
    try:
        found = await client.call(DescribeClusterRequest())
    except OperatingError as e:
        if e.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise OperatingError(
            "the controllers run an older version, which cannot be asked this; ask a broker, with "
            "--bootstrap-server",
            code=e.code,
        ) from e
    assert isinstance(found, DescribeClusterResponse), found
    return found


async def describe_controllers(client: ControllerClient) -> tuple[DescribedController, ...]:
    """Those that vote or are registered; none, if they are older than that."""
    try:
        return (await describe_cluster(client)).controllers
    except OperatingError as e:
        if e.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return ()


async def describe_features(client: ControllerClient) -> ClusterFeatures:
    """What the active controller supports, and what the cluster agreed on; by name."""
    found = await describe_cluster(client)
    return ClusterFeatures(
        epoch=found.epoch,
        features=tuple(
            FeatureDescription(
                name=feature.name,
                min_version=feature.lowest,
                max_version=feature.highest,
                finalized_level=feature.finalized,
            )
            for feature in found.features
        ),
    )


async def update_features(
    client: ControllerClient,
    levels: Mapping[str, int],
    *,
    upgrade_type: UpgradeType,
    validate_only: bool = False,
) -> None:
    """Bring features to these levels, all of them or none (KIP-584).

    :raises OperatingError: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED and others.
    """
    answer = await client.call(
        UpdateFeaturesRequest(
            updates=tuple(
                FeatureUpdate(name=name, level=level, upgrade_type=upgrade_type)
                for name, level in levels.items()
            ),
            validate_only=validate_only,
        )
    )
    assert isinstance(answer, UpdateFeaturesResponse), answer
    refused = [result for result in answer.results if result.error_code is not ErrorCode.NONE]
    # Those that failed for another's sake only say so.
    refused.sort(key=lambda result: result.error_code is ErrorCode.FEATURE_UPDATE_FAILED)
    for first in refused:
        raise OperatingError(first.error_message or "", code=first.error_code)


async def unregister_broker(client: ControllerClient, broker_id: int) -> None:
    """Forget a broker that is stopped for good."""
    await client.call(UnregisterBrokerRequest(broker_id=BrokerId(broker_id)))


async def unregister_controller(client: ControllerClient, controller_id: int) -> None:
    """Forget a controller that does not vote any more."""
    await client.call(UnregisterControllerRequest(controller_id=BrokerId(controller_id)))
