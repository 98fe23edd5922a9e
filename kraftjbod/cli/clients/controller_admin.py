"""WIRE. Requests about a cluster and its features, sent to controllers.

Tools use them with ``--bootstrap-controller``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.cli.clients.cluster_admin import ClusterFeatures, FeatureDescription, UpgradeType
from kraftjbod.cli.clients.controller_client import ControllerClient
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.rpc_config_messages import UnregisterBrokerRequestRpc
from kraftjbod.protocol.rpc_controller_messages import (
    DescribeClusterRequestRpc,
    DescribeClusterResponseRpc,
    DescribedController,
    UnregisterControllerRequestRpc,
)
from kraftjbod.protocol.rpc_messages import (
    FeatureUpdate,
    UpdateFeaturesRequestRpc,
    UpdateFeaturesResponseRpc,
)


async def describe_cluster(client: ControllerClient) -> DescribeClusterResponseRpc:
    """Return the active controller's description of the cluster.

    :raises OperatingError: UNSUPPORTED_VERSION: the controllers run an older version.
    """
    try:
        found = await client.call(DescribeClusterRequestRpc())
    except OperatingError as e:
        if e.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise OperatingError(
            "the controllers run an older version, which cannot be asked this; ask a broker, with "
            "--bootstrap-server",
            code=e.code,
        ) from e
    assert isinstance(found, DescribeClusterResponseRpc), found
    return found


async def describe_controllers(client: ControllerClient) -> tuple[DescribedController, ...]:
    """Return the voters and the registered controllers; empty if the controllers' version is too
    old.

    :raises OperatingError: no controller is active, or the request is refused.
    """
    try:
        return (await describe_cluster(client)).controllers
    except OperatingError as e:
        if e.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return ()


async def describe_features(client: ControllerClient) -> ClusterFeatures:
    """Return the features by name: the range of the active controller, and the level of the
    cluster.

    :raises OperatingError: UNSUPPORTED_VERSION: the controllers run an older version; or no
        controller is active.
    """
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
    """Set the levels of features, all of them or none (KIP-584).

    :raises OperatingError: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED and others.
    """
    answer = await client.call(
        UpdateFeaturesRequestRpc(
            updates=tuple(
                FeatureUpdate(name=name, level=level, upgrade_type=upgrade_type)
                for name, level in levels.items()
            ),
            validate_only=validate_only,
        )
    )
    assert isinstance(answer, UpdateFeaturesResponseRpc), answer
    refused = [result for result in answer.results if result.error_code is not ErrorCode.NONE]
    # Report last the features that failed only because others did.
    refused.sort(key=lambda result: result.error_code is ErrorCode.FEATURE_UPDATE_FAILED)
    for first in refused:
        raise OperatingError(first.error_message or "", code=first.error_code)


async def unregister_broker(client: ControllerClient, broker_id: int) -> None:
    """Unregister a permanently stopped broker.

    :raises OperatingError: BROKER_ID_NOT_REGISTERED and others.
    """
    await client.call(UnregisterBrokerRequestRpc(broker_id=BrokerId(broker_id)))


async def unregister_controller(client: ControllerClient, controller_id: int) -> None:
    """Unregister a permanently stopped controller that is no longer a voter.

    :raises OperatingError: BROKER_ID_NOT_REGISTERED and others.
    """
    await client.call(UnregisterControllerRequestRpc(controller_id=BrokerId(controller_id)))
