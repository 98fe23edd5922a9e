"""PURE. The state machine of a broker's registration and heartbeats.

STARTING (registering, or not caught up) -> RECOVERY (caught up, still fenced) -> RUNNING
(unfenced) -> PENDING_CONTROLLED_SHUTDOWN (leaders are moving away) -> SHUTTING_DOWN.

The rules for directories (KIP-858, "Handling log directory failures"):

* A registration lists the directories that are online when it is *sent*.
* A heartbeat lists those of its registration that are offline now. The list is cumulative, and its
  size depends only on the number of directories.
* A failure is acknowledged when a heartbeat that *contained* it was answered, or a registration
  without the directory. ``failure_reports.py`` has the rules until then.
* A directory that returns before its failure was acknowledged waits for the acknowledgement.
  Otherwise there would be no new leader epoch, and its leaders may have lost acknowledged records.
* A change counts as known once the local metadata has reached the registration that reported it.
* After a lost connection to the controller a heartbeat is sent at once: the controller soon treats
  a broker without a connection as dead (``broker.reconnect.grace.ms``).
* Impaired directories (KIP-928) and changes of cordons (KIP-1066) are reported at once, then at the
  eager interval until a heartbeat with them is answered. There is no deadline: the broker itself
  refuses appends to an impaired directory, so no acknowledged record can be lost.

If the controller no longer knows the registration, the same incarnation registers again.
If only the directories of a registration are outdated, it is amended: epoch and state stay, and
heartbeats continue. An amendment follows when ``metadata.version`` gains directories (KIP-858,
"Compatibility, Deprecation, and Migration Plan"), and when a directory returns, is added or is to
be forgotten. A broker with several directories cannot serve below that version: it stops.
``reported_directories.py`` has the contents of reports, ``broker_session.py`` the validity of
leaderships. ``lifecycle_manager.py`` is the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, assert_never

from kraftjbod.broker.cluster.lifecycle.broker_session import BrokerSession
from kraftjbod.broker.cluster.lifecycle.failure_reports import FailureReports
from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    Action,
    AnnounceChanges,
    AnnounceMayStop,
    AnnounceRefusal,
    AnnounceRegistered,
    AnnounceUnfenced,
    BecameReady,
    ControllerLost,
    CordonsChanged,
    DirectoryAttached,
    DirectoryEvent,
    DirectoryFailed,
    DirectoryForgotten,
    DirectoryImpaired,
    DirectoryRecovered,
    Event,
    HeartbeatAnswered,
    HeartbeatFailed,
    MetadataReplayed,
    RegistrationAnswered,
    RegistrationFailed,
    ReportDeadlinePassed,
    SendHeartbeat,
    SendRegistration,
    ShutDown,
    ShutdownRequested,
    Started,
    WakeAt,
    WokeUp,
)
from kraftjbod.broker.cluster.lifecycle.reported_directories import (
    DirectoryChanges,
    ReportedDirectories,
)
from kraftjbod.core.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    ErrorCode,
    InvalidTransition,
    OperatingError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Deadline, ExponentialBackoff
from kraftjbod.core.metadata_version import METADATA_VERSION, MetadataVersion
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    ListenerInfo,
)
from kraftjbod.storage.checkpoints import CleanShutdown

NOT_REGISTERED: Final = BrokerEpoch(-1)
_STORY_LINES: Final = 30

#: A retry of the same registration cannot succeed.
_REFUSED_FOR_GOOD: Final = frozenset(
    {
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
#: The controller has another registration than this broker.
_REGISTER_AGAIN: Final = frozenset(
    {
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.LOG_DIR_NOT_FOUND,
    }
)
#: Without a connection the controller soon treats this broker as dead.
_CUT_OFF: Final = frozenset({ErrorCode.BROKER_NOT_AVAILABLE})


class BrokerState(Enum):
    """States of the broker in its lifecycle, with Kafka's names.

    RECOVERY: the broker has replayed the metadata and is still fenced. RUNNING: it is unfenced.
    PENDING_CONTROLLED_SHUTDOWN: its leaderships are being moved to other brokers.
    """

    NOT_RUNNING = "not_running"
    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    PENDING_CONTROLLED_SHUTDOWN = "pending_controlled_shutdown"
    SHUTTING_DOWN = "shutting_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """Values of this broker's registration that do not change while the process runs."""

    broker_id: BrokerId
    cluster_id: str
    incarnation_id: Uuid
    listeners: tuple[ListenerInfo, ...]
    rack: str | None = None
    previous_broker_epoch: BrokerEpoch = NOT_REGISTERED
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log_dir_paths: Mapping[DirectoryId, str] = field(default_factory=dict)
    """Paths of the directories at startup, as far as they were identified."""
    has_several_dirs: bool = False
    """Whether more than one directory is configured, including offline ones."""
    max_replicas: int = -1
    """Limit of the replicas in this process; -1 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleTimes:
    """Intervals and time limits of registration and heartbeats, in ms.

    * ``eager_interval_ms``: the interval of heartbeats while a report has no response.
    * ``registration_timeout_ms``: the broker stops if its first registration takes longer. An
      answer from a controller with another metadata log restarts this time.
    * ``dir_failure_timeout_ms``: time to report the failure of a directory (``FailureReports``).
    * ``session_timeout_ms``: valid until a controller announces its own value in a response.
    """

    heartbeat_interval_ms: int = 2_000
    eager_interval_ms: int = 100
    registration_timeout_ms: int = 60_000
    dir_failure_timeout_ms: int = 30_000
    session_timeout_ms: int = 9_000


class LifecycleState:
    """The state machine of this broker's registration and heartbeats. ``handle(event, now_ms)``
    returns the actions to perform.

    Attributes are read-only for callers. All times are monotonic ms.

    :raises InvalidTransition: from ``handle``: a response arrived without a request in flight.
    """

    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        online_dirs: Collection[DirectoryId],
        times: LifecycleTimes,
        backoff: ExponentialBackoff,
        cordoned_dirs: Collection[DirectoryId] = (),
        impaired_dirs: Mapping[DirectoryId, LogDirState] = MappingProxyType({}),
        clean_shutdowns: Mapping[DirectoryId, CleanShutdown] = MappingProxyType({}),
    ) -> None:
        self.identity = identity
        self.state = BrokerState.NOT_RUNNING
        self.broker_epoch = NOT_REGISTERED
        self.metadata_offset = -1
        self.is_ready = False
        self._times = times
        self._backoff = backoff
        self._dirs = ReportedDirectories(
            online=online_dirs,
            cordoned=cordoned_dirs,
            impaired=impaired_dirs,
            paths=identity.log_dir_paths,
            clean_shutdowns=clean_shutdowns,
            incarnation_id=identity.incarnation_id,
        )
        #: Paths of directories that returned before their failure was acknowledged.
        self._returning: dict[DirectoryId, str] = {}
        #: Changes that the controller has accepted, with the metadata offset that shows them.
        self._unseen: list[tuple[int, DirectoryChanges]] = []
        self._failures = FailureReports(timeout_ms=times.dir_failure_timeout_ms)
        #: The heartbeat in flight.
        self._sent: BrokerHeartbeatRequest | None = None
        #: The last heartbeat answered under this registration.
        self._answered: BrokerHeartbeatRequest | None = None
        self._is_registering = False
        self._session = BrokerSession(timeout_ms=times.session_timeout_ms)
        self._now_ms = 0
        self._registration_deadline = Deadline(0)
        self._registration_failures = 0
        #: The registration may be outdated: it has no directories, or the result of an amendment is
        #: unknown.
        self._must_amend = False
        #: The last metadata, and the level and directory support that were handled last.
        self._metadata = MetadataReplayed(offset=-1)
        self._heeded: tuple[MetadataVersion, bool] | None = None
        #: The metadata offset from which on the metadata shows the present registration.
        self._shown_from = 0
        #: Send another heartbeat as soon as the one in flight has ended.
        self._again = False
        self._story: deque[str] = deque(maxlen=_STORY_LINES)

    def __repr__(self) -> str:
        return (
            f"<LifecycleState broker={self.identity.broker_id} {self.state.value} "
            f"epoch={self.broker_epoch} unacknowledged={len(self._failures.unreported)}>"
        )

    @property
    def offline_dirs(self) -> tuple[DirectoryId, ...]:
        """The offline directories for the next heartbeat, sorted."""
        return self._dirs.offline

    @property
    def unacknowledged_dirs(self) -> frozenset[DirectoryId]:
        return frozenset(self._failures.unreported)

    def is_session_over(self, now_ms: int) -> bool:
        """Return whether the session has expired, so that the controller may have fenced this
        broker."""
        return self._session.is_over(now_ms)

    def may_be_deposed(self, now_ms: int) -> bool:
        """Return whether other brokers may lead partitions that this broker leads by its
        metadata; False before the first response of a controller."""
        return self._session.is_in_doubt(now_ms, self.metadata_offset)

    def check_invariants(self) -> None:
        assert not any(map(self._dirs.is_online, self._failures.unreported)), self
        assert not (self._is_registering and self._sent is not None), self
        assert self.state is not BrokerState.RUNNING or self.broker_epoch != NOT_REGISTERED, self

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        self._require_legal(event)
        self._now_ms = now_ms
        self._story.append(f"{now_ms} {self.state.value}: {event}")
        match event:
            case Started():
                self.state = BrokerState.STARTING
                return self._begin_registration(now_ms)
            case RegistrationAnswered():
                return self._registered_as(event)
            case RegistrationFailed():
                return self._registration_failed(event, now_ms)
            case HeartbeatAnswered():
                return self._heartbeat_answered(event.response, now_ms)
            case HeartbeatFailed():
                return self._heartbeat_failed(event, now_ms)
            case WokeUp():
                return self._send_next(now_ms)
            case ControllerLost():
                self._session.lost()
                return self._heartbeat_at_once()
            case MetadataReplayed():
                return self._metadata_replayed(event)
            case BecameReady():
                self.is_ready = True
                return self._heartbeat_at_once()
            case ShutdownRequested():
                return self._shutdown_requested(event)
            case _:
                return self._handle_directory(event, now_ms)

    def _handle_directory(self, event: DirectoryEvent, now_ms: int) -> list[Action]:
        match event:
            case DirectoryFailed():
                return self._directory_failed(event, now_ms)
            case ReportDeadlinePassed(directory_id=directory_id):
                return self._failures.deadline_passed(directory_id, now_ms)
            case DirectoryImpaired(directory_id=directory_id, state=state):
                self._dirs.became_impaired(directory_id, state)
                return self._heartbeat_at_once()
            case DirectoryRecovered(directory_id=directory_id):
                self._dirs.recovered(directory_id)
                return self._amend() or self._heartbeat_at_once()
            case CordonsChanged(cordoned=cordoned):
                self._dirs.cordons_changed(cordoned)
                return self._heartbeat_at_once()
            case DirectoryAttached(directory_id=directory_id, path=path):
                self._returning[directory_id] = path
                actions = self._bring_back_directories()
                is_unreported = directory_id in self._returning
                return [*actions, *(self._heartbeat_at_once() if is_unreported else self._amend())]
            case DirectoryForgotten(directory_id=directory_id):
                self._returning.pop(directory_id, None)
                self._dirs.forgotten(directory_id)
                return [*self._failures.over(directory_id), *self._amend()]
            case _:
                assert_never(event)

    def _require_legal(self, event: Event) -> None:
        match event:
            case Started():
                legal = self.state is BrokerState.NOT_RUNNING
            case RegistrationAnswered() | RegistrationFailed():
                legal = self._is_registering
            case HeartbeatAnswered() | HeartbeatFailed():
                legal = self._sent is not None
            case _:
                legal = True
        if not legal:
            raise InvalidTransition(f"{event} makes no sense to {self!r}", tuple(self._story))

    # --- registration ----------------------------------------------------------------------------

    def _begin_registration(self, now_ms: int) -> list[Action]:
        self.broker_epoch = NOT_REGISTERED
        self._session.lost()
        self._registration_deadline = Deadline.after(now_ms, self._times.registration_timeout_ms)
        self._registration_failures = 0
        return self._register()

    def _register(self) -> list[Action]:
        self._is_registering = True
        self._session.sent(self._now_ms)
        self._must_amend = False
        dirs, identity = self._dirs, self.identity
        dirs.registration_sent()
        return [
            SendRegistration(
                BrokerRegistrationRequest(
                    broker_id=identity.broker_id,
                    cluster_id=identity.cluster_id,
                    incarnation_id=identity.incarnation_id,
                    listeners=identity.listeners,
                    rack=identity.rack,
                    features=dict(identity.features),
                    log_dirs=dirs.asked,
                    log_dir_paths=dirs.reported_paths,
                    clean_shutdown_epochs=dirs.reported_clean_epochs,
                    clean_shutdown_incarnations=dirs.reported_clean_incarnations,
                    cordoned_log_dirs=dirs.reported_cordoned,
                    forgotten_log_dirs=dirs.reported_forgotten,
                    previous_broker_epoch=identity.previous_broker_epoch,
                )
            )
        ]

    def _registered_as(self, answer: RegistrationAnswered) -> list[Action]:
        self._is_registering = False
        self._answered = None
        self.broker_epoch = answer.broker_epoch
        reported = self._failures.unreported - set(self._dirs.asked)
        changes = self._dirs.registration_answered(answer.broker_epoch)
        unknown = max(self._metadata.offset + 1, answer.broker_epoch)
        self._shown_from = unknown if answer.metadata_offset < 0 else answer.metadata_offset
        self._session.answered(self._shown_from, answer.session_timeout_ms)
        if changes:
            self._unseen.append((answer.metadata_offset, changes))
        return [
            *self._failures.reported(reported),
            AnnounceRegistered(answer.broker_epoch),
            *self._announce_seen(),
            *self._follow_metadata_version(),
            *self._bring_back_directories(),
            *self._heartbeat_at_once(),
        ]

    def _announce_seen(self) -> list[Action]:
        """Return announcements of the accepted changes that the local metadata shows by now."""
        seen = [changes for offset, changes in self._unseen if offset <= self.metadata_offset]
        self._unseen = [(at, c) for at, c in self._unseen if at > self.metadata_offset]
        return [AnnounceChanges(changes) for changes in seen]

    def _registration_failed(self, event: RegistrationFailed, now_ms: int) -> list[Action]:
        self._is_registering = False
        self._session.lost()
        if self.state is BrokerState.SHUTTING_DOWN:
            return []
        why = f"the controller refuses broker {self.identity.broker_id}: {event.message}"
        if event.code in _REFUSED_FOR_GOOD:
            changes = self._dirs.registration_refused()
            if not changes or self.broker_epoch == NOT_REGISTERED:
                return [ShutDown(ClusterRefusedError(why))]
            refusal = AnnounceRefusal(changes, OperatingError(event.message, code=event.code))
            return [refusal, *self._heartbeat_at_once()]
        if self.broker_epoch != NOT_REGISTERED:
            # An amendment failed: either the old registration is valid, or the new one with a lost
            # response. The next attempt follows a heartbeat.
            self._must_amend = True
            return self._next_heartbeat(now_ms)
        if event.code is ErrorCode.FOREIGN_METADATA:
            # An operator must restore the controller's metadata. Stopping this broker would not
            # help.
            self._registration_deadline = Deadline.after(
                now_ms, self._times.registration_timeout_ms
            )
        if self._registration_deadline.has_passed(now_ms):
            return [
                ShutDown(
                    ClusterUnreachableError(
                        f"no registration within initial.broker.registration.timeout.ms="
                        f"{self._times.registration_timeout_ms}; at last: {event.message}"
                    )
                )
            ]
        self._registration_failures += 1
        return [WakeAt(now_ms + self._backoff.wait_ms(self._registration_failures))]

    # --- heartbeats ------------------------------------------------------------------------------

    def _send_next(self, now_ms: int) -> list[Action]:
        if self._is_registering or self.state is BrokerState.SHUTTING_DOWN:
            return []
        if self.broker_epoch == NOT_REGISTERED:
            return self._register()
        return self._heartbeat_at_once()

    def _heartbeat_at_once(self) -> list[Action]:
        """Send a heartbeat now, or after the request in flight. Does nothing unless registered and
        running."""
        if self.broker_epoch == NOT_REGISTERED or self.state is BrokerState.SHUTTING_DOWN:
            return []
        if self._sent is not None or self._is_registering:
            self._again = True
            return []
        self._again = False
        self._session.sent(self._now_ms)
        self._sent = BrokerHeartbeatRequest(
            broker_id=self.identity.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self.metadata_offset,
            want_fence=not self.is_ready,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            offline_log_dirs=self._dirs.offline,
            cordoned_log_dirs=self._dirs.cordoned,
            impaired_log_dirs=self._dirs.impaired,
            max_replicas=self.identity.max_replicas,
        )
        self._dirs.heartbeat_sent()
        return [SendHeartbeat(self._sent)]

    def _heartbeat_answered(self, response: BrokerHeartbeatResponse, now_ms: int) -> list[Action]:
        assert self._sent is not None
        self._answered, self._sent = self._sent, None
        self._session.answered(response.metadata_offset, response.session_timeout_ms)
        reported = self._failures.unreported & set(self._answered.offline_log_dirs)
        actions = self._failures.reported(reported)
        if self.state is BrokerState.STARTING and response.is_caught_up:
            self.state = BrokerState.RECOVERY
        if self.state is BrokerState.RECOVERY and not response.is_fenced:
            self.state = BrokerState.RUNNING
            actions.append(AnnounceUnfenced())
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and response.should_shut_down:
            return [*actions, *self._may_stop()]
        actions += self._bring_back_directories()
        return [*actions, *(self._amend() or self._next_heartbeat(now_ms))]

    def _heartbeat_failed(self, event: HeartbeatFailed, now_ms: int) -> list[Action]:
        self._sent = None
        self._session.lost()
        if event.code not in _REGISTER_AGAIN:
            # No immediate retry, even if one was requested: it would fail again.
            self._again = False
            return self._next_heartbeat(now_ms, is_cut_off=event.code in _CUT_OFF)
        match self.state:
            case BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                return self._may_stop()
            case BrokerState.SHUTTING_DOWN:
                return []
            case _:
                self.state = BrokerState.STARTING
                return self._begin_registration(now_ms)

    def _next_heartbeat(self, now_ms: int, *, is_cut_off: bool = False) -> list[Action]:
        if self._again:
            return self._heartbeat_at_once()
        if self.state is BrokerState.SHUTTING_DOWN:
            return []
        waits_for_answer = (
            is_cut_off
            or bool(self._failures.unreported)
            or bool(self._returning)
            or self._has_unreported_conditions()
            or self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
            or (self.is_ready and self.state is not BrokerState.RUNNING)
        )
        times = self._times
        interval_ms = times.eager_interval_ms if waits_for_answer else times.heartbeat_interval_ms
        return [WakeAt(now_ms + min(interval_ms, times.heartbeat_interval_ms))]

    def _metadata_replayed(self, event: MetadataReplayed) -> list[Action]:
        """Record the replayed metadata. Send a heartbeat when it first contains this broker's own
        registration: the controller waits for that before it unfences the broker."""
        was_lagging = self.metadata_offset < self.broker_epoch
        self.metadata_offset = max(self.metadata_offset, event.offset)
        self._metadata = event
        is_news = was_lagging and self.metadata_offset >= self.broker_epoch
        return [
            *self._announce_seen(),
            *self._follow_metadata_version(),
            *(self._heartbeat_at_once() if is_news else ()),
        ]

    def _follow_metadata_version(self) -> list[Action]:
        """React to a changed ``metadata.version``: stop the broker if it needs a higher one, or
        register again if the registration lacks directories that the level supports.

        Waits until the metadata shows this broker's registration.
        """
        level, knows_dirs = self._metadata.level, self._metadata.knows_dirs
        is_lagging = self._metadata.offset < self.broker_epoch
        if self.broker_epoch == NOT_REGISTERED or is_lagging or self._heeded == (level, knows_dirs):
            return []
        self._heeded = (level, knows_dirs)
        self._dirs.can_report_impaired = level.has_cordoning or not level.has_directories
        if self.identity.has_several_dirs and not level.has_directories:
            return [ShutDown(ClusterRefusedError(_needs_directories(level)))]
        if level.has_directories and not knows_dirs:
            self._must_amend = True
        return self._amend()

    def _amend(self) -> list[Action]:
        """Register again in the same incarnation if needed. Does nothing while a request is in
        flight.

        An unreachable controller does not stop the broker: the present registration stays valid.
        """
        is_free = self._sent is None and not self._is_registering
        is_going = self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
        is_gone = self.state is BrokerState.SHUTTING_DOWN or self.broker_epoch == NOT_REGISTERED
        is_due = self._must_amend or self._dirs.needs_amendment or self._is_misheard
        if not is_due or not is_free or is_going or is_gone:
            return []
        return self._register()

    @property
    def _is_misheard(self) -> bool:
        """Whether the metadata has other online directories than this broker last reported."""
        metadata = self._metadata
        if metadata.online_dirs is None or metadata.offset < self._shown_from:
            return False
        return metadata.level.has_directories and self._dirs.is_misheard(metadata.online_dirs)

    # --- directories -----------------------------------------------------------------------------

    def _has_unreported_conditions(self) -> bool:
        """Return whether impairments or cordons have changed since the last answered heartbeat."""
        answered = self._answered
        dirs = self._dirs
        if answered is None:
            return bool(dirs.impaired)
        reported = (answered.impaired_log_dirs, answered.cordoned_log_dirs)
        return reported != (dirs.impaired, dirs.cordoned)

    def _bring_back_directories(self) -> list[Action]:
        """Mark returning directories as online again if the controller has acknowledged their
        failure."""
        actions: list[Action] = []
        returning = [d for d in self._returning if self._failures.is_known(d)]
        for directory_id in returning:
            self._dirs.attached(directory_id, self._returning.pop(directory_id))
            actions += self._failures.over(directory_id)
        return actions

    def _directory_failed(self, event: DirectoryFailed, now_ms: int) -> list[Action]:
        self._returning.pop(event.directory_id, None)
        if not self._dirs.is_online(event.directory_id):
            return []
        self._dirs.failed(event.directory_id)
        armed = self._failures.began(event, now_ms)
        is_asked = self._is_registering and event.directory_id in self._dirs.asked
        if not is_asked and not self._dirs.is_registered(event.directory_id):
            # The directory failed on its return. No heartbeat can name it, so a registration
            # without it must follow.
            self._must_amend = True
            return [*armed, *self._amend()]
        return [*armed, *self._heartbeat_at_once()]

    # --- the end ---------------------------------------------------------------------------------

    def _shutdown_requested(self, event: ShutdownRequested) -> list[Action]:
        if event.at_once:
            # The controller grants fencing and shutdown with one heartbeat, without waiting for the
            # session to expire.
            self.is_ready = False
        match self.state:
            case BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                return []
            case BrokerState.SHUTTING_DOWN:
                return [AnnounceMayStop()]
            case _ if self.broker_epoch == NOT_REGISTERED:
                return self._may_stop()
            case _:
                self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
                return self._heartbeat_at_once()

    def _may_stop(self) -> list[Action]:
        self.state = BrokerState.SHUTTING_DOWN
        return [AnnounceMayStop()]


def _needs_directories(level: MetadataVersion) -> str:
    needed = MetadataVersion.IV_3_7_IV2
    return (
        f"log.dirs has several directories, which needs {METADATA_VERSION} {needed.release} "
        f"({needed}) or later, and the cluster is at {level.release} ({level}): raise it with "
        f"kraftjbod-features upgrade --metadata {needed.release} while all brokers have one "
        "directory, or configure one directory here"
    )
