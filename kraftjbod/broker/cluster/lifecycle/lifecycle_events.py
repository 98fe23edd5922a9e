"""PURE. What a broker's life is made of: the events and the actions of ``lifecycle_state.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kraftjbod.broker.cluster.lifecycle.reported_directories import DirectoryChanges
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import BrokerEpoch, DirectoryId
from kraftjbod.core.log_dir_state import LogDirState
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
    """``metadata_offset`` is the entry's that holds the registration, -1 if that is not known.

    ``session_timeout_ms`` is how long the session lasts; 0 if the controller does not say it.
    """

    broker_epoch: BrokerEpoch
    metadata_offset: int = -1
    session_timeout_ms: int = 0


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
class ControllerLost:
    """The connection to the controller went, and with it the proof that this broker lives."""


@dataclass(frozen=True, slots=True)
class WokeUp:
    """The instant of the last ``WakeAt`` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReplayed:
    """Metadata has been replayed up to ``offset``.

    ``level`` is the cluster's ``metadata.version`` then, and ``knows_dirs`` says whether this
    broker's registration lists directories; ``online_dirs`` are those that it says are online,
    None if that is not known.
    """

    offset: int
    level: MetadataVersion = LATEST_METADATA_VERSION
    knows_dirs: bool = True
    online_dirs: frozenset[DirectoryId] | None = None


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The replicas are loaded and the controller knows where each of them is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFailed:
    """``leads`` says, whenever asked, whether this broker leads a replica in the directory.

    ``has_unreported_replicas`` says whether it has a replica that the controller may believe to be
    elsewhere (an assignment into the directory is on its way).
    """

    directory_id: DirectoryId
    leads: Callable[[], bool]
    has_unreported_replicas: Callable[[], bool] = bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDeadlinePassed:
    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryImpaired:
    """It is saturated or stalled (KIP-928), or is the one after having been the other."""

    directory_id: DirectoryId
    state: LogDirState


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRecovered:
    """An impaired directory is all right again."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonsChanged:
    """These directories take no new replicas from now on, and all others do (KIP-1066)."""

    cordoned: frozenset[DirectoryId]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAttached:
    """A directory came back from OFFLINE, or is new on this broker."""

    directory_id: DirectoryId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryForgotten:
    """The directory is gone for good, and the cluster is to release its id."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """The broker is to stop: in order, leaders first, or ``at_once``, because it cannot serve."""

    at_once: bool = False


DirectoryEvent = (
    DirectoryFailed
    | ReportDeadlinePassed
    | DirectoryImpaired
    | DirectoryRecovered
    | CordonsChanged
    | DirectoryAttached
    | DirectoryForgotten
)

Event = (
    Started
    | RegistrationAnswered
    | RegistrationFailed
    | HeartbeatAnswered
    | HeartbeatFailed
    | WokeUp
    | ControllerLost
    | MetadataReplayed
    | BecameReady
    | ShutdownRequested
    | DirectoryEvent
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
class AnnounceChanges:
    """The controller knows of these changes, and metadata here shows what followed from them."""

    changes: DirectoryChanges


@dataclass(frozen=True, slots=True)
class AnnounceRefusal:
    """The controller will not have these changes, and they are taken back."""

    changes: DirectoryChanges
    error: OperatingError


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
    | AnnounceChanges
    | AnnounceRefusal
    | AnnounceUnfenced
    | AnnounceMayStop
    | ShutDown
)
