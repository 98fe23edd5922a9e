"""What a broker's life is made of: the events and the actions of ``lifecycle_state.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kraftjbod.core.errors import ErrorCode, KraftJbodError
from kraftjbod.core.ids import BrokerEpoch, DirectoryId
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
)

# --- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The broker may begin to register."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationAnswered:
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFailed:
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    response: BrokerHeartbeatResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed:
    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class WokeUp:
    """The instant of the last ``WakeAt`` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReplayed:
    """Metadata has been replayed up to ``offset``.

    ``level`` is the cluster's ``metadata.version`` then, and ``knows_dirs`` says whether this
    broker's registration lists directories.
    """

    offset: int
    level: MetadataVersion = LATEST_METADATA_VERSION
    knows_dirs: bool = True


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The replicas are loaded and the controller knows where each of them is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFailed:
    """``leads`` says, whenever asked, whether this broker leads a replica in the directory.

    ``has_untold_replicas`` says whether a replica is in it that the controller may believe to be
    elsewhere (an assignment into the directory is on its way).
    """

    directory_id: DirectoryId
    leads: Callable[[], bool]
    has_untold_replicas: Callable[[], bool] = bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDeadlinePassed:
    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """The broker is to stop: in order, leaders first, or ``at_once``, because it cannot serve."""

    at_once: bool = False


Event = (
    Started
    | RegistrationAnswered
    | RegistrationFailed
    | HeartbeatAnswered
    | HeartbeatFailed
    | WokeUp
    | MetadataReplayed
    | BecameReady
    | DirectoryFailed
    | ReportDeadlinePassed
    | ShutdownRequested
)

# --- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendRegistration:
    request: BrokerRegistrationRequest


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    request: BrokerHeartbeatRequest


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Replaces the ``WakeAt`` before it."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class ArmReportDeadline:
    directory_id: DirectoryId
    at_ms: int


@dataclass(frozen=True, slots=True)
class DisarmReportDeadline:
    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class AnnounceRegistered:
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class AnnounceUnfenced:
    """Clients may be served."""


@dataclass(frozen=True, slots=True)
class AnnounceMayStop:
    """The controlled shutdown is over: nothing is led here any more."""


@dataclass(frozen=True, slots=True)
class ShutDown:
    """The broker must stop; ``error`` says why."""

    error: KraftJbodError


Action = (
    SendRegistration
    | SendHeartbeat
    | WakeAt
    | ArmReportDeadline
    | DisarmReportDeadline
    | AnnounceRegistered
    | AnnounceUnfenced
    | AnnounceMayStop
    | ShutDown
)
