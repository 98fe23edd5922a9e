"""PURE. RPC messages to register and describe controllers (KIP-919).

The rules of rpc_messages.py apply.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from kraftjbod.protocol.rpc_messages import (
    ListenerInfo,
    OnceOnlyRequest,
    RepeatedText,
    RpcBody,
    RpcRequest,
    RpcResponse,
    WireBrokerId,
    WireDirectoryId,
    WireUuid,
)

MAX_LISTENERS: Final = 16
MAX_FEATURES: Final = 100


# --- registrations -------------------------------------------------------------------------------


class ControllerRegistrationResponse(RpcResponse):
    """The registration is committed in the metadata."""


class ControllerRegistrationRequest(RpcRequest):
    """Register an incarnation of a controller, whether it is a voter or not.

    ``replaced_incarnation_id`` is the incarnation that the sender found in the metadata, or None.
    If the metadata has another incarnation when the request arrives, that one is newer and stays.
    ``features`` has the lowest and highest level that the software supports, by feature.
    """

    api = "ControllerRegistration"
    sender_field = "controller_id"
    Response = ControllerRegistrationResponse

    controller_id: WireBrokerId
    cluster_id: RepeatedText
    incarnation_id: WireUuid
    replaced_incarnation_id: WireUuid | None = None
    directory_id: WireDirectoryId
    listeners: tuple[ListenerInfo, ...] = Field(min_length=1, max_length=MAX_LISTENERS)
    features: dict[RepeatedText, tuple[int, int]] = Field(max_length=MAX_FEATURES)
    software_version: RepeatedText


class UnregisterControllerResponseRpc(RpcResponse):
    """The controller is no longer registered."""


class UnregisterControllerRequestRpc(OnceOnlyRequest):
    """Remove the registration of a controller that is no voter. A live controller registers
    again at once.

    ``found_incarnation_id`` is the incarnation that the sender found; None if it found no
    registration.
    """

    api = "UnregisterController"
    Response = UnregisterControllerResponseRpc

    controller_id: WireBrokerId
    found_incarnation_id: WireUuid | None = None


# --- descriptions --------------------------------------------------------------------------------


class DescribedController(RpcBody):
    """A controller that is a voter or is registered.

    An unregistered voter has only ``controller_id`` and an address.
    """

    controller_id: WireBrokerId
    is_voter: bool
    listeners: tuple[ListenerInfo, ...] = Field(default=(), max_length=MAX_LISTENERS)
    incarnation_id: WireUuid | None = None
    directory_id: WireDirectoryId | None = None
    software_version: RepeatedText = ""


class ConfigSynonym(RpcBody):
    """One of the places that set a configuration key, with the value there. ``name`` is the key,
    ``source`` a ``ConfigSource``.
    """

    name: str
    value: str
    source: int


class DescribedConfig(RpcBody):
    """The value that a controller uses for one configuration key.

    ``value`` is None if the key has neither a value nor a default, and for passwords and keys.
    ``synonyms`` starts with the one that applies.
    """

    name: str
    value: str | None
    source: int
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    is_sensitive: bool = False


class DescribeControllerConfigsResponse(RpcResponse):
    controller_id: WireBrokerId
    configs: tuple[DescribedConfig, ...]


class DescribeControllerConfigsRequest(RpcRequest):
    """Request the configuration values of the receiving controller, whether it is active or not."""

    api = "DescribeControllerConfigs"
    Response = DescribeControllerConfigsResponse


class DescribedFeature(RpcBody):
    """A feature: the levels that the active controller supports, and the level in use."""

    name: RepeatedText
    lowest: int
    highest: int
    finalized: int


class DescribeClusterResponseRpc(RpcResponse):
    """The state of the cluster. ``controller_id`` is the active controller.

    ``epoch`` is the metadata offset of this state.
    """

    cluster_id: RepeatedText
    controller_id: WireBrokerId
    epoch: int
    controllers: tuple[DescribedController, ...]
    features: tuple[DescribedFeature, ...]


class DescribeClusterRequestRpc(RpcRequest):
    """Request the controllers and the feature levels from the active controller."""

    api = "DescribeCluster"
    Response = DescribeClusterResponseRpc
