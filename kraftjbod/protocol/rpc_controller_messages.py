"""PURE. Bodies of the RPC with which controllers are registered and described (KIP-919).

The rules are those of rpc_messages.py.
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
    """The metadata has this incarnation, committed."""


class ControllerRegistrationRequest(RpcRequest):
    """A controller, with a vote or without, introduces this incarnation of itself.

    ``replaced_incarnation_id`` is the one that it found in the metadata, None if it found none:
    another one there came after it had looked, and stays. ``features`` are the least and greatest
    level of each that its software supports.
    """

    api = "ControllerRegistration"
    Response = ControllerRegistrationResponse

    controller_id: WireBrokerId
    cluster_id: RepeatedText
    incarnation_id: WireUuid
    replaced_incarnation_id: WireUuid | None = None
    directory_id: WireDirectoryId
    listeners: tuple[ListenerInfo, ...] = Field(min_length=1, max_length=MAX_LISTENERS)
    features: dict[RepeatedText, tuple[int, int]] = Field(max_length=MAX_FEATURES)
    software_version: RepeatedText


class UnregisterControllerResponse(RpcResponse):
    """The controller is not registered any more."""


class UnregisterControllerRequest(OnceOnlyRequest):
    """Forget a controller that does not vote; one that lives registers again at once.

    ``found_incarnation_id`` is the one that it was found with, None if it was not.
    """

    api = "UnregisterController"
    Response = UnregisterControllerResponse

    controller_id: WireBrokerId
    found_incarnation_id: WireUuid | None = None


# --- descriptions --------------------------------------------------------------------------------


class DescribedController(RpcBody):
    """A controller that votes or is registered.

    Of one that is not registered only where it is reached is known.
    """

    controller_id: WireBrokerId
    is_voter: bool
    listeners: tuple[ListenerInfo, ...] = Field(default=(), max_length=MAX_LISTENERS)
    incarnation_id: WireUuid | None = None
    directory_id: WireDirectoryId | None = None
    software_version: RepeatedText = ""


class ConfigSynonym(RpcBody):
    """A place that could set a value, and what it says; ``source`` is a ``ConfigSource``."""

    name: str
    value: str
    source: int


class DescribedConfig(RpcBody):
    """What a controller goes by for one key; the synonym that wins comes first.

    ``value`` is None where nothing is set and there is no default.
    """

    name: str
    value: str | None
    source: int
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...] = ()


class DescribeControllerConfigsResponse(RpcResponse):
    controller_id: WireBrokerId
    configs: tuple[DescribedConfig, ...]


class DescribeControllerConfigsRequest(RpcRequest):
    """What the controller that is asked goes by itself, whether it leads or not."""

    api = "DescribeControllerConfigs"
    Response = DescribeControllerConfigsResponse


class DescribedFeature(RpcBody):
    """The levels that the active controller supports, and the one that holds."""

    name: RepeatedText
    lowest: int
    highest: int
    finalized: int


class DescribeClusterResponse(RpcResponse):
    """``controller_id`` is who leads, and answers; ``epoch`` the offset that all this is of."""

    cluster_id: RepeatedText
    controller_id: WireBrokerId
    epoch: int
    controllers: tuple[DescribedController, ...]
    features: tuple[DescribedFeature, ...]


class DescribeClusterRequest(RpcRequest):
    """Which controllers there are, and which levels hold; asked of the active one."""

    api = "DescribeCluster"
    Response = DescribeClusterResponse
