"""PURE. Events and actions of ``lifecycle_state.py``."""

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
    """Event: the broker may register from now on. It occurs once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationAnswered:
    """Event: the registration succeeded.

    ``metadata_offset`` is the offset of the registration record, -1 if unknown.
    ``session_timeout_ms`` is the session timeout, 0 if unknown.
    """

    broker_epoch: BrokerEpoch
    metadata_offset: int = -1
    session_timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFailed:
    """Event: the controller refused the registration with ``code`` and ``message``, or it gave no
    answer.
    """

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """Event: the controller answered the last ``SendHeartbeat``."""

    response: BrokerHeartbeatResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFailed:
    """Event: the controller refused the last heartbeat with ``code`` and ``message``, or it gave no
    answer.
    """

    code: ErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class ControllerLost:
    """Event: the connection to the controller was lost.

    While it was open, the controller treated this broker as alive.
    """


@dataclass(frozen=True, slots=True)
class WokeUp:
    """Event: the time of the last ``WakeAt`` action has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataReplayed:
    """Event: metadata was replayed up to and including ``offset``.

    ``level`` is the ``metadata.version`` there. ``knows_dirs`` is whether this broker's
    registration lists directories. ``online_dirs`` are the online directories in it, None if
    unknown.
    """

    offset: int
    level: MetadataVersion = LATEST_METADATA_VERSION
    knows_dirs: bool = True
    online_dirs: frozenset[DirectoryId] | None = None


@dataclass(frozen=True, slots=True)
class BecameReady:
    """Event: the replicas are loaded, and the controller knows the directory of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryFailed:
    """Event: a directory failed. ``leads`` returns whether this broker leads a replica in it.

    ``has_unreported_replicas`` returns whether an assignment of a replica into it is still pending.
    """

    directory_id: DirectoryId
    leads: Callable[[], bool]
    has_unreported_replicas: Callable[[], bool] = bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDeadlinePassed:
    """Event: the time of ``ArmReportDeadline`` has come for this directory."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryImpaired:
    """Event: the directory became saturated or stalled (KIP-928), or changed between these two
    states."""

    directory_id: DirectoryId
    state: LogDirState


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryRecovered:
    """Event: an impaired directory is online again."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonsChanged:
    """Event: ``cordoned`` is the new complete set of cordoned directories, which receive no new
    replicas (KIP-1066).
    """

    cordoned: frozenset[DirectoryId]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryAttached:
    """Event: an OFFLINE directory returned, or a new one was added."""

    directory_id: DirectoryId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryForgotten:
    """Event: an operator requests that the cluster removes the directory, which is lost or empty,
    from this broker's registration.
    """

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested:
    """Event: the broker should stop, after the controller has moved its leaders away.

    ``at_once``: the broker cannot serve, so the first heartbeat asks to be fenced.
    """

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
    """Action: send ``request``. ``RegistrationAnswered`` or ``RegistrationFailed`` must follow."""

    request: BrokerRegistrationRequest


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Action: send ``request``. ``HeartbeatAnswered`` or ``HeartbeatFailed`` must follow."""

    request: BrokerHeartbeatRequest


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Action: pass ``WokeUp`` to the state machine at ``at_ms`` (monotonic). Replaces the previous
    ``WakeAt``.
    """

    at_ms: int


@dataclass(frozen=True, slots=True)
class ArmReportDeadline:
    """Action: pass ``ReportDeadlinePassed`` for this directory to the state machine at ``at_ms``
    (monotonic).
    """

    directory_id: DirectoryId
    at_ms: int


@dataclass(frozen=True, slots=True)
class DisarmReportDeadline:
    """Action: forget the deadline of this directory, if it has one."""

    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class AnnounceRegistered:
    """Action: report that the controller has registered the broker with ``broker_epoch``."""

    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class AnnounceChanges:
    """Action: report that the controller has accepted these changes of directories.

    The local metadata shows their consequences already.
    """

    changes: DirectoryChanges


@dataclass(frozen=True, slots=True)
class AnnounceRefusal:
    """Action: report that the controller refused these changes of directories, and that they are
    withdrawn."""

    changes: DirectoryChanges
    error: OperatingError


@dataclass(frozen=True, slots=True)
class AnnounceUnfenced:
    """Action: report that the broker may serve clients."""


@dataclass(frozen=True, slots=True)
class AnnounceMayStop:
    """Action: report the end of the controlled shutdown: the controller has moved all leaders away,
    or does not have this broker's registration.
    """


@dataclass(frozen=True, slots=True)
class ShutDown:
    """Action: stop the broker; ``error`` has the reason."""

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
