"""PURE. Registered controllers and the feature levels that each supports (KIP-919).

* The last incarnation of a controller is registered. A registration names the incarnation that it
  replaces. So a late one, from an ended process, does not replace a newer one.
* Registrations do not expire. A former voter stays registered until an operator unregisters it.
  Until then its feature levels count when levels are raised.
* Below the level that supports registrations the request is refused, because older versions could
  not read the record.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.metadata_version import METADATA_VERSION, MetadataVersion
from kraftjbod.metadata.records import (
    FeatureRange,
    Listener,
    RegisterControllerRecord,
    UnregisterControllerRecord,
)
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_controller_messages import (
    ControllerRegistrationRequest,
    UnregisterControllerRequestRpc,
)

MAX_CONTROLLERS: Final = 100
"""Maximum number of registered controllers, voters or not."""


def registered(
    state: MetadataState, cluster_id: str, request: ControllerRegistrationRequest
) -> tuple[RegisterControllerRecord, ...]:
    """Return the record of a controller's registration; none if its incarnation is registered.

    :raises OperatingError: INCONSISTENT_CLUSTER_ID. UNSUPPORTED_VERSION: ``metadata.version`` is
        too low. DUPLICATE_BROKER_REGISTRATION: another incarnation is registered than the request
        replaces. POLICY_VIOLATION: too many controllers are registered.
    """
    if request.cluster_id != cluster_id:
        raise OperatingError(
            f"Controller {request.controller_id} is of cluster {request.cluster_id}, but this is "
            f"{cluster_id}.",
            code=ErrorCode.INCONSISTENT_CLUSTER_ID,
        )
    _require_level(state)
    present = state.controllers.get(request.controller_id)
    found = None if present is None else present.incarnation_id
    if found == request.incarnation_id:
        return ()
    if found != request.replaced_incarnation_id:
        raise OperatingError(
            f"Controller {request.controller_id} is registered with incarnation {found}, not "
            f"{request.replaced_incarnation_id}, which this registration would replace.",
            code=ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        )
    if present is None and len(state.controllers) >= MAX_CONTROLLERS:
        raise OperatingError(
            f"{MAX_CONTROLLERS} controllers are registered; take those back that are gone for "
            "good, with kraftjbod-cluster unregister-controller.",
            code=ErrorCode.POLICY_VIOLATION,
        )
    return (_record(request),)


def unregistered(
    state: MetadataState, voters: Collection[BrokerId], request: UnregisterControllerRequestRpc
) -> tuple[UnregisterControllerRecord, ...]:
    """Return the record that unregisters a controller; none if a first attempt has done so.

    :raises OperatingError: UNSUPPORTED_VERSION: ``metadata.version`` is too low.
        BROKER_ID_NOT_REGISTERED: the controller is unknown. INVALID_REQUEST: the controller is a
        voter (KAFKA-20865), or registered again after the first attempt.
    """
    _require_level(state)
    controller_id = request.controller_id
    controller = state.controllers.get(controller_id)
    if request.is_repeated and request.found_incarnation_id is not None:
        if controller is None:
            return ()
        if controller.incarnation_id != request.found_incarnation_id:
            raise OperatingError(
                f"Controller {controller_id} has registered again meanwhile; ask again if it shall "
                "go too.",
                code=ErrorCode.INVALID_REQUEST,
            )
    if controller_id in voters:
        raise OperatingError(
            f"Controller {controller_id} votes; remove it from the voters first, with "
            "kraftjbod-metadata-quorum remove-controller.",
            code=ErrorCode.INVALID_REQUEST,
        )
    if controller is None:
        raise OperatingError(
            f"Controller ID {controller_id} is not currently registered",
            code=ErrorCode.BROKER_ID_NOT_REGISTERED,
        )
    return (UnregisterControllerRecord(controller_id=controller_id),)


def _require_level(state: MetadataState) -> None:
    present, needed = state.metadata_version, MetadataVersion.IV_4_4_IV2
    if not present.has_controllers:
        raise OperatingError(
            f"Controllers are registered from {METADATA_VERSION} {needed.release} on; it is "
            f"{present.release}.",
            code=ErrorCode.UNSUPPORTED_VERSION,
        )


def _record(request: ControllerRegistrationRequest) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        directory_id=request.directory_id,
        listeners=tuple(
            Listener(name=each.name, host=each.host, port=each.port) for each in request.listeners
        ),
        features=tuple(
            FeatureRange(name, lowest, highest)
            for name, (lowest, highest) in sorted(request.features.items())
        ),
        software_version=request.software_version,
    )
