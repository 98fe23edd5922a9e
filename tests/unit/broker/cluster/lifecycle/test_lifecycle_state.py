"""``LifecycleState``: events and the actions that the state machine returns."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    Action,
    AnnounceChanges,
    AnnounceMayStop,
    AnnounceRefusal,
    AnnounceRegistered,
    AnnounceUnfenced,
    ArmReportDeadline,
    BecameReady,
    ControllerLost,
    CordonsChanged,
    DirectoryAttached,
    DirectoryFailed,
    DirectoryForgotten,
    DirectoryImpaired,
    DirectoryRecovered,
    DisarmReportDeadline,
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
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import (
    NOT_REGISTERED,
    BrokerIdentity,
    BrokerState,
    LifecycleState,
    LifecycleTimes,
)
from kraftjbod.broker.cluster.lifecycle.reported_directories import DirectoryChanges
from kraftjbod.core.errors import (
    ErrorCode,
    InvalidTransition,
    KafkaStorageError,
    StartupError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    ListenerInfo,
)

A, B, C, D = (DirectoryId(letter * 16) for letter in (b"A", b"B", b"C", b"D"))
EPOCH = BrokerEpoch(50)
K = TypeVar("K")


def machine(
    *,
    cordoned: frozenset[DirectoryId] = frozenset(),
    impaired: dict[DirectoryId, LogDirState] | None = None,
    **identity: Any,
) -> LifecycleState:
    return LifecycleState(
        identity=BrokerIdentity(
            broker_id=BrokerId(1),
            cluster_id="cluster",
            incarnation_id=Uuid(b"i" * 16),
            listeners=(ListenerInfo(name="PLAINTEXT", host="h", port=9092),),
            previous_broker_epoch=BrokerEpoch(7),
            **identity,
        ),
        online_dirs=[C, A, B],
        times=LifecycleTimes(),
        backoff=ExponentialBackoff(initial_ms=100, max_ms=1_000, random_unit=lambda: 0.5),
        cordoned_dirs=cordoned,
        impaired_dirs=impaired or {},
    )


def test_session_lasts_from_the_send_time_of_the_answered_heartbeat() -> None:
    state, answer = machine(), RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=0)
    state.handle(Started(), 1_000)
    assert not state.is_session_over(10**9), "no session has started"
    state.handle(answer, 2_000)  # The machine sends a heartbeat.
    assert (state.is_session_over(9_999), state.is_session_over(10_000)) == (False, True)
    state.handle(no(ErrorCode.REQUEST_TIMED_OUT), 4_000)
    state.handle(WokeUp(), 6_000)
    assert state.is_session_over(10_000), "the heartbeat was not answered"
    state.handle(alive(), 10_500)
    assert (state.is_session_over(14_999), state.is_session_over(15_000)) == (False, True)


def test_may_be_deposed_is_true_until_metadata_offset_of_a_later_answer_is_replayed() -> None:
    state = machine()
    state.handle(Started(), 0)
    assert not state.may_be_deposed(10**9), "the broker leads nothing yet"
    state.handle(RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=60), 0)
    state.handle(MetadataReplayed(offset=60), 0)
    state.handle(alive(at=60), 0)
    state.handle(alive(at=60), 0)  # The heartbeat was sent when the metadata arrived.
    assert not state.may_be_deposed(8_999)
    assert state.may_be_deposed(9_000), "the session may be over"
    state.handle(WokeUp(), 10_000)
    state.handle(alive(at=62), 10_020)
    state.handle(MetadataReplayed(offset=61), 10_030)
    assert state.may_be_deposed(10_030), "metadata may lack the changes of the expired session"
    state.handle(MetadataReplayed(offset=62), 10_040)
    assert not state.may_be_deposed(10_040)
    state.handle(WokeUp(), 12_000)
    assert state.handle(ControllerLost(), 12_000) == []
    again = heartbeat(state.handle(alive(at=62), 12_000))
    assert state.may_be_deposed(12_000), "the response may be older than the loss"
    assert again.current_metadata_offset == 62
    state.handle(alive(at=-1), 12_000)
    assert not state.may_be_deposed(12_000), "an older controller sends no offset"
    state.handle(WokeUp(), 14_000)
    state.handle(no(ErrorCode.STALE_BROKER_EPOCH), 14_000)
    assert state.may_be_deposed(14_000), "another registration may have taken its place"
    state.handle(RegistrationAnswered(broker_epoch=BrokerEpoch(70), metadata_offset=70), 14_010)
    assert state.may_be_deposed(14_010)
    state.handle(MetadataReplayed(offset=70), 14_020)
    assert not state.may_be_deposed(14_020)


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.FOREIGN_METADATA]
)
def test_may_be_deposed_is_true_from_a_failed_heartbeat_until_a_later_one_is_answered(
    code: ErrorCode,
) -> None:
    state = machine()
    state.handle(Started(), 0)
    state.handle(RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=60), 0)
    state.handle(MetadataReplayed(offset=60), 0)
    state.handle(alive(at=60), 0)
    state.handle(alive(at=60), 0)
    assert not state.may_be_deposed(2_000)
    state.handle(WokeUp(), 2_000)
    state.handle(no(code), 2_100)
    assert state.may_be_deposed(2_100), "another controller may be active"
    state.handle(WokeUp(), 4_100)
    assert state.may_be_deposed(4_100)
    state.handle(alive(at=60), 4_200)
    assert not state.may_be_deposed(4_200)


def test_session_length_comes_from_the_registration_answer() -> None:
    state = machine()
    state.handle(Started(), 0)
    answer = RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=60, session_timeout_ms=3_000)
    state.handle(answer, 0)
    assert (state.is_session_over(2_999), state.is_session_over(3_000)) == (False, True)


def only(actions: list[Action], kind: type[K]) -> K:
    found = [action for action in actions if isinstance(action, kind)]
    assert len(found) == 1, actions
    return found[0]


def registration(actions: list[Action]) -> BrokerRegistrationRequest:
    return only(actions, SendRegistration).request


def heartbeat(actions: list[Action]) -> BrokerHeartbeatRequest:
    return only(actions, SendHeartbeat).request


def alive(
    *, caught_up: bool = True, fenced: bool = False, may_stop: bool = False, at: int = -1
) -> HeartbeatAnswered:
    return HeartbeatAnswered(
        response=BrokerHeartbeatResponse(
            is_caught_up=caught_up,
            is_fenced=fenced,
            should_shut_down=may_stop,
            metadata_offset=at,
        )
    )


def no(code: ErrorCode) -> HeartbeatFailed:
    return HeartbeatFailed(code=code, message="no")


def dead(
    directory_id: DirectoryId, *, leads: bool = True, unreported: list[str] | None = None
) -> DirectoryFailed:
    """``unreported`` are replicas whose assignment into the directory was not accepted yet."""
    return DirectoryFailed(
        directory_id=directory_id,
        leads=lambda: leads,
        has_unreported_replicas=lambda: bool(unreported),
    )


def state_of(m: LifecycleState) -> BrokerState:
    """Return the state without narrowing ``m.state`` for the type checker."""
    return m.state


def registered() -> LifecycleState:
    """A machine that is registered at 0, with its first heartbeat in flight."""
    m = machine()
    m.handle(Started(), 0)
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), 0)
    return m


def running() -> LifecycleState:
    """A machine that is unfenced at 0, without a heartbeat in flight."""
    m = registered()
    m.handle(BecameReady(), 0)
    m.handle(alive(), 0)
    m.handle(alive(), 0)
    assert m.state is BrokerState.RUNNING
    return m


# --- startup --------------------------------------------------------------------------------------


def test_broker_registers_catches_up_and_is_unfenced() -> None:
    m = machine()
    asked = registration(m.handle(Started(), 0))
    assert asked.log_dirs == (A, B, C) and asked.previous_broker_epoch == 7
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 10)
    assert only(actions, AnnounceRegistered).broker_epoch == EPOCH
    first = heartbeat(actions)
    assert first.want_fence and first.current_metadata_offset == -1
    assert m.handle(alive(caught_up=False, fenced=True), 20) == [WakeAt(2_020)]
    assert state_of(m) is BrokerState.STARTING
    assert m.handle(MetadataReplayed(offset=49), 30) == []
    assert heartbeat(m.handle(MetadataReplayed(offset=50), 40)).current_metadata_offset == 50
    assert m.handle(alive(fenced=True), 50) == [WakeAt(2_050)]
    assert state_of(m) is BrokerState.RECOVERY
    assert not heartbeat(m.handle(BecameReady(), 60)).want_fence
    assert m.handle(alive(fenced=True), 70) == [WakeAt(170)], (
        "heartbeats are eager while the broker waits"
    )
    assert not heartbeat(m.handle(WokeUp(), 170)).want_fence
    actions = m.handle(alive(), 180)
    assert actions == [AnnounceUnfenced(), WakeAt(2_180)] and state_of(m) is BrokerState.RUNNING


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_registration_is_retried_until_its_timeout(code: ErrorCode) -> None:
    m = machine()
    m.handle(Started(), 0)
    failed = RegistrationFailed(code=code, message="busy")
    assert m.handle(failed, 0) == [WakeAt(100)]
    registration(m.handle(WokeUp(), 100))
    assert m.handle(failed, 100) == [WakeAt(300)]
    registration(m.handle(WokeUp(), 300))
    error = only(m.handle(failed, 60_000), ShutDown).error
    assert isinstance(error, StartupError)
    assert "initial.broker.registration.timeout.ms" in str(error) and "busy" in str(error)


@pytest.mark.parametrize("code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REQUEST])
def test_registration_with_permanent_error_shuts_down_immediately(code: ErrorCode) -> None:
    m = machine()
    m.handle(Started(), 0)
    actions = m.handle(RegistrationFailed(code=code, message="cluster is xyz"), 0)
    error = only(actions, ShutDown).error
    assert isinstance(error, StartupError) and "cluster is xyz" in str(error)


def test_directory_that_fails_during_registration_is_reported_by_the_first_heartbeat() -> None:
    m = machine()
    m.handle(Started(), 0)
    assert m.handle(dead(B), 5) == [ArmReportDeadline(B, 30_005)]
    first = heartbeat(m.handle(RegistrationAnswered(broker_epoch=EPOCH), 10))
    assert first.offline_log_dirs == (B,)
    assert DisarmReportDeadline(B) in m.handle(alive(), 20)


def test_directory_that_fails_between_registration_attempts_is_omitted_from_the_next() -> None:
    m = machine()
    m.handle(Started(), 0)
    m.handle(RegistrationFailed(code=ErrorCode.NOT_CONTROLLER, message=""), 0)
    m.handle(dead(B), 5)
    assert registration(m.handle(WokeUp(), 100)).log_dirs == (A, C)
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 110)
    assert DisarmReportDeadline(B) in actions
    assert heartbeat(actions).offline_log_dirs == ()


# --- failed directories ---------------------------------------------------------------------------


def test_failed_directory_is_reported_immediately_and_in_every_heartbeat() -> None:
    m = running()
    actions = m.handle(dead(B), 1_000)
    assert ArmReportDeadline(B, 31_000) in actions
    assert heartbeat(actions).offline_log_dirs == (B,)
    assert m.handle(alive(), 1_010) == [DisarmReportDeadline(B), WakeAt(3_010)]
    assert heartbeat(m.handle(WokeUp(), 3_010)).offline_log_dirs == (B,)
    assert m.handle(dead(B), 3_011) == [], "a directory fails once"


def test_each_failed_directory_has_its_own_deadline() -> None:
    m = running()
    m.handle(dead(A), 1_000)
    m.handle(no(ErrorCode.BROKER_NOT_AVAILABLE), 1_010)
    actions = m.handle(dead(B), 5_000)
    assert ArmReportDeadline(B, 35_000) in actions
    assert heartbeat(actions).offline_log_dirs == (A, B)
    error = only(m.handle(ReportDeadlinePassed(directory_id=A), 31_000), ShutDown).error
    assert isinstance(error, KafkaStorageError) and error.directory_id == A


def test_directory_that_fails_during_a_heartbeat_is_not_acknowledged_by_its_answer() -> None:
    m = running()
    m.handle(dead(A), 1_000)
    assert m.handle(dead(B), 1_001) == [ArmReportDeadline(B, 31_001)]
    actions = m.handle(alive(), 1_010)
    assert DisarmReportDeadline(A) in actions and DisarmReportDeadline(B) not in actions
    assert heartbeat(actions).offline_log_dirs == (A, B), "the next heartbeat follows immediately"
    assert m.unacknowledged_dirs == {B}
    assert DisarmReportDeadline(B) in m.handle(alive(), 1_020)


def test_unreported_failed_directory_is_reported_eagerly() -> None:
    m = running()
    m.handle(dead(A), 1_000)
    assert m.handle(no(ErrorCode.REQUEST_TIMED_OUT), 3_000) == [WakeAt(3_100)]
    assert heartbeat(m.handle(WokeUp(), 3_100)).offline_log_dirs == (A,)


def test_report_deadline_of_a_directory_without_leaders_is_extended() -> None:
    m = running()
    m.handle(dead(A, leads=False), 1_000)
    passed = ReportDeadlinePassed(directory_id=A)
    assert m.handle(passed, 31_000) == [ArmReportDeadline(A, 61_000)]


def test_report_deadline_after_the_acknowledgement_has_no_effect() -> None:
    m = running()
    m.handle(dead(A), 1_000)
    m.handle(alive(), 1_010)
    assert m.handle(ReportDeadlinePassed(directory_id=A), 31_000) == []


# --- a registration that the controller lost ------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.LOG_DIR_NOT_FOUND,
    ],
)
def test_unregistered_broker_registers_again_with_online_directories(
    code: ErrorCode,
) -> None:
    m = running()
    m.handle(dead(B), 1_000)
    again = registration(m.handle(no(code), 1_010))
    assert again.log_dirs == (A, C) and again.incarnation_id == m.identity.incarnation_id
    assert (m.state, m.broker_epoch) == (BrokerState.STARTING, NOT_REGISTERED)
    actions = m.handle(RegistrationAnswered(broker_epoch=BrokerEpoch(90)), 1_020)
    assert DisarmReportDeadline(B) in actions
    beat = heartbeat(actions)
    assert (beat.broker_epoch, beat.offline_log_dirs, beat.want_fence) == (90, (), False)
    m.handle(alive(), 1_030)
    assert m.state is BrokerState.RUNNING


def test_failed_heartbeat_is_retried_after_the_usual_interval() -> None:
    m = running()
    m.handle(WokeUp(), 2_000)
    assert m.handle(no(ErrorCode.REQUEST_TIMED_OUT), 2_010) == [WakeAt(4_010)]
    assert m.state is BrokerState.RUNNING


def test_lost_controller_connection_triggers_a_heartbeat() -> None:
    """The controller treats a broker as dead that closes its connection and does not reconnect."""
    m = running()
    assert heartbeat(m.handle(ControllerLost(), 500)).broker_epoch == EPOCH
    assert m.handle(ControllerLost(), 501) == [], "the channel repeats requests in flight"
    assert m.handle(no(ErrorCode.BROKER_NOT_AVAILABLE), 2_500) == [WakeAt(2_600)]
    assert m.handle(WokeUp(), 2_600)
    assert m.handle(alive(), 2_610) == [WakeAt(4_610)]
    m.handle(ShutdownRequested(), 3_000)
    m.handle(alive(may_stop=True), 3_010)
    assert m.handle(ControllerLost(), 3_020) == [], "the shutdown was granted"
    assert machine().handle(ControllerLost(), 0) == []


# --- shutdown -------------------------------------------------------------------------------------


def test_controlled_shutdown_is_requested_until_the_controller_agrees() -> None:
    m = running()
    assert heartbeat(m.handle(ShutdownRequested(), 0)).want_shut_down
    assert state_of(m) is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    assert m.handle(alive(), 10) == [WakeAt(110)]
    m.handle(WokeUp(), 110)
    assert m.handle(alive(may_stop=True), 120) == [AnnounceMayStop()]
    assert state_of(m) is BrokerState.SHUTTING_DOWN
    assert m.handle(WokeUp(), 2_000) == []
    assert m.handle(ShutdownRequested(), 2_000) == [AnnounceMayStop()]


def test_immediate_shutdown_also_requests_to_be_fenced() -> None:
    m = running()
    sent = heartbeat(m.handle(ShutdownRequested(at_once=True), 0))
    assert (sent.want_fence, sent.want_shut_down) == (True, True)


def test_directory_that_fails_during_controlled_shutdown_is_reported() -> None:
    m = running()
    m.handle(ShutdownRequested(), 0)
    assert m.handle(ShutdownRequested(), 1) == []
    m.handle(dead(A), 5)
    beat = heartbeat(m.handle(alive(), 10))
    assert beat.offline_log_dirs == (A,) and beat.want_shut_down


def test_shutdown_before_registration_is_immediate() -> None:
    m = machine()
    m.handle(Started(), 0)
    assert m.handle(ShutdownRequested(), 1) == [AnnounceMayStop()]
    assert m.handle(RegistrationFailed(code=ErrorCode.NOT_CONTROLLER, message=""), 2) == []


def test_shutdown_of_an_unregistered_broker_ends_immediately() -> None:
    m = running()
    m.handle(ShutdownRequested(), 0)
    assert m.handle(no(ErrorCode.STALE_BROKER_EPOCH), 10) == [AnnounceMayStop()]


# --- levels --------------------------------------------------------------------------------------


def metadata(level: int, *, knows_dirs: bool, offset: int = EPOCH) -> MetadataReplayed:
    return MetadataReplayed(offset=offset, level=MetadataVersion(level), knows_dirs=knows_dirs)


def from_before_directories() -> LifecycleState:
    """A machine as of :func:`running`, in a cluster at a level without directories."""
    m = running()
    assert SendRegistration not in map(type, m.handle(metadata(14, knows_dirs=False), 0))
    m.handle(alive(), 0)
    return m


def test_registration_contains_paths_cordons_and_features() -> None:
    m = machine(
        log_dir_paths={A: "/a", C: "/c"},
        cordoned=frozenset({C}),
        features={"metadata.version": (14, 30)},
    )
    asked = registration(m.handle(Started(), 0))
    assert asked.log_dir_paths == ("/a", "", "/c")
    assert asked.cordoned_log_dirs == (C,)
    assert asked.features == {"metadata.version": (14, 30)}
    assert heartbeat(m.handle(RegistrationAnswered(broker_epoch=EPOCH), 0)).cordoned_log_dirs == (
        C,
    )


def test_registration_is_amended_when_the_metadata_level_begins_to_support_directories() -> None:
    """The incarnation, the broker epoch and the state stay the same (KAFKA-16757, KAFKA-16952)."""
    m = from_before_directories()
    asked = registration(m.handle(metadata(17, knows_dirs=False, offset=60), 10))
    assert (asked.incarnation_id, asked.log_dirs) == (m.identity.incarnation_id, (A, B, C))
    assert (m.broker_epoch, state_of(m)) == (EPOCH, BrokerState.RUNNING)
    assert m.handle(WokeUp(), 20) == [], "one request is in flight at a time"
    assert m.handle(dead(B), 25) == [ArmReportDeadline(B, 30_025)]
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 30)
    assert heartbeat(actions).offline_log_dirs == (B,)
    assert (m.broker_epoch, state_of(m)) == (EPOCH, BrokerState.RUNNING)
    m.handle(alive(), 40)
    assert m.handle(metadata(17, knows_dirs=True, offset=61), 50) == []


def test_amendment_waits_for_the_heartbeat_in_flight() -> None:
    m = from_before_directories()
    heartbeat(m.handle(WokeUp(), 5))
    assert m.handle(metadata(17, knows_dirs=False), 10) == []
    assert registration(m.handle(alive(), 20)).log_dirs == (A, B, C)


def test_failed_amendment_is_retried_between_heartbeats() -> None:
    m = from_before_directories()
    registration(m.handle(metadata(17, knows_dirs=False), 10))
    failed = RegistrationFailed(code=ErrorCode.REQUEST_TIMED_OUT, message="no controller")
    for now_ms in (100_000, 200_000):
        assert m.handle(failed, now_ms) == [WakeAt(now_ms + 2_000)]
        heartbeat(m.handle(WokeUp(), now_ms + 2_000))
        assert m.handle(no(ErrorCode.REQUEST_TIMED_OUT), now_ms + 2_010) == [WakeAt(now_ms + 4_010)]
        heartbeat(m.handle(WokeUp(), now_ms + 4_010))
        registration(m.handle(alive(), now_ms + 4_020))
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), 300_000)
    assert m.handle(alive(), 300_010) == [WakeAt(302_010)]


def test_amendment_is_repeated_after_the_level_fell_and_rose() -> None:
    m = from_before_directories()
    registration(m.handle(metadata(17, knows_dirs=False), 10))
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), 20)
    m.handle(alive(), 30)
    assert m.handle(metadata(17, knows_dirs=True), 40) == []
    assert m.handle(metadata(14, knows_dirs=False), 50) == []
    registration(m.handle(metadata(17, knows_dirs=False), 60))


def test_broker_that_shuts_down_sends_no_amendment() -> None:
    m = from_before_directories()
    heartbeat(m.handle(ShutdownRequested(), 0))
    assert m.handle(metadata(17, knows_dirs=False), 10) == []
    assert m.handle(alive(), 20) == [WakeAt(120)]


def test_broker_with_several_directories_at_old_metadata_level_shuts_down_with_instructions() -> (
    None
):
    m = machine(has_several_dirs=True)
    m.handle(Started(), 0)
    early = m.handle(metadata(14, knows_dirs=False, offset=49), 5)
    assert early == [], "the metadata lacks the registration"
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), 10)
    error = only(m.handle(metadata(14, knows_dirs=False), 20), ShutDown).error
    assert isinstance(error, StartupError)
    assert "kraftjbod-features upgrade --metadata 3.7-IV2" in str(error)
    assert "or configure one directory" in str(error)
    assert m.handle(metadata(14, knows_dirs=False, offset=51), 30) == [], (
        "the shutdown is requested once"
    )


def test_old_level_replayed_before_registration_stops_broker_with_several_dirs() -> None:
    m = machine(has_several_dirs=True)
    m.handle(Started(), 0)
    assert m.handle(metadata(14, knows_dirs=False), 5) == []
    only(m.handle(RegistrationAnswered(broker_epoch=EPOCH), 10), ShutDown)


# --- assignments into a failed directory
# -----------------------------------------------------------


def test_unreported_replica_in_a_failed_directory_keeps_the_deadline() -> None:
    """KIP-858: an assignment into the failed directory must be reported as well as the failure.

    An accepted move is reverted this way, and the controller treats the replica as healthy until
    then.
    """
    m, unreported = running(), ["t-0"]
    m.handle(dead(A, unreported=unreported), 1_000)
    assert DisarmReportDeadline(A) not in m.handle(alive(), 1_010)
    assert m.unacknowledged_dirs == frozenset()
    (stop,) = m.handle(ReportDeadlinePassed(directory_id=A), 31_000)
    assert isinstance(stop, ShutDown) and "acknowledged this" in str(stop.error)


def test_reported_assignment_into_a_failed_directory_ends_the_deadline() -> None:
    m, unreported = running(), ["t-0"]
    m.handle(dead(A, unreported=unreported), 1_000)
    m.handle(alive(), 1_010)
    unreported.clear()
    for at_ms in (31_000, 61_000):
        assert m.handle(ReportDeadlinePassed(directory_id=A), at_ms) == []


def test_unreported_assignment_into_a_failed_directory_without_leaders_extends_the_deadline() -> (
    None
):
    m = running()
    m.handle(dead(A, leads=False, unreported=["t-0"]), 1_000)
    m.handle(alive(), 1_010)
    assert m.handle(ReportDeadlinePassed(directory_id=A), 31_000) == [ArmReportDeadline(A, 61_000)]


# --- impaired directories ------------------------------------------------------------------------

FULL, HUNG = LogDirState.SATURATED, LogDirState.STALLED


def full(directory_id: DirectoryId) -> DirectoryImpaired:
    return DirectoryImpaired(directory_id=directory_id, state=FULL)


def well(directory_id: DirectoryId) -> DirectoryRecovered:
    return DirectoryRecovered(directory_id=directory_id)


def impaired(beat: BrokerHeartbeatRequest) -> list[tuple[DirectoryId, LogDirState]]:
    assert beat.impaired_log_dirs is not None
    return [(said.directory_id, said.state) for said in beat.impaired_log_dirs]


def test_impaired_directory_is_reported_in_every_heartbeat_until_it_recovers() -> None:
    m = running()
    beat = heartbeat(m.handle(full(B), 1_000))
    assert impaired(beat) == [(B, FULL)] and beat.offline_log_dirs == ()
    assert m.handle(alive(), 1_010) == [WakeAt(3_010)], "the report was acknowledged"
    stalled = DirectoryImpaired(directory_id=A, state=HUNG)
    assert impaired(heartbeat(m.handle(stalled, 2_000))) == [(A, HUNG), (B, FULL)]
    m.handle(alive(), 2_010)
    assert impaired(heartbeat(m.handle(well(B), 2_500))) == [(A, HUNG)]
    m.handle(alive(), 2_510)
    assert impaired(heartbeat(m.handle(WokeUp(), 4_510))) == [(A, HUNG)]


def test_unacknowledged_impairment_is_reported_eagerly_without_a_deadline() -> None:
    m = running()
    assert ArmReportDeadline not in map(type, m.handle(full(B), 1_000))
    assert m.handle(no(ErrorCode.NOT_CONTROLLER), 1_010) == [WakeAt(1_110)]
    assert impaired(heartbeat(m.handle(WokeUp(), 1_110))) == [(B, FULL)]
    m.handle(well(B), 1_111)
    assert impaired(heartbeat(m.handle(alive(), 1_120))) == [], (
        "the answer belongs to the older heartbeat"
    )
    assert m.handle(alive(), 1_130) == [WakeAt(3_130)]


def test_broker_with_a_full_directory_reports_it_before_it_is_unfenced() -> None:
    m = machine(impaired={B: FULL})
    assert registration(m.handle(Started(), 0)).log_dirs == (A, B, C)
    first = heartbeat(m.handle(RegistrationAnswered(broker_epoch=EPOCH), 0))
    assert first.want_fence and impaired(first) == [(B, FULL)]


def test_impaired_directory_that_fails_is_reported_as_offline() -> None:
    m = running()
    m.handle(full(B), 1_000)
    m.handle(alive(), 1_010)
    beat = heartbeat(m.handle(dead(B), 2_000))
    assert (impaired(beat), beat.offline_log_dirs) == ([], (B,))
    m.handle(alive(), 2_010)
    m.handle(full(B), 2_020)
    assert m.handle(alive(), 2_030) == [WakeAt(4_030)], "a failed directory is not impaired"


def test_impaired_directory_at_an_old_level_is_offline_until_an_amendment() -> None:
    m = running()
    m.handle(metadata(MetadataVersion.IV_3_7_IV2, knows_dirs=True), 0)
    m.handle(alive(), 0)
    beat = heartbeat(m.handle(full(B), 1_000))
    assert (impaired(beat), beat.offline_log_dirs) == ([], (B,))
    assert m.handle(alive(), 1_010) == [WakeAt(3_010)]
    asked = registration(m.handle(well(B), 2_000))
    assert asked.log_dirs == (A, B, C)
    beat = heartbeat(m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_010))
    assert beat.offline_log_dirs == ()
    assert m.handle(alive(), 2_020) == [WakeAt(4_020)]


def test_impaired_directory_is_reported_as_such_after_a_level_upgrade() -> None:
    m = running()
    m.handle(metadata(MetadataVersion.IV_3_7_IV2, knows_dirs=True), 0)
    m.handle(alive(), 0)
    m.handle(full(B), 1_000)
    m.handle(alive(), 1_010)
    newer = metadata(MetadataVersion.IV_4_3_IV0, knows_dirs=True, offset=60)
    assert registration(m.handle(newer, 2_000)).log_dirs == (A, B, C)
    beat = heartbeat(m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_010))
    assert (impaired(beat), beat.offline_log_dirs) == ([(B, FULL)], ())


# --- cordons -------------------------------------------------------------------------------------


def test_changed_cordons_are_reported_immediately() -> None:
    m = running()
    assert heartbeat(
        m.handle(CordonsChanged(cordoned=frozenset({A, D})), 1_000)
    ).cordoned_log_dirs == (A,)
    m.handle(no(ErrorCode.NOT_CONTROLLER), 1_010)
    assert heartbeat(m.handle(WokeUp(), 1_110)).cordoned_log_dirs == (A,)
    m.handle(alive(), 1_120)
    assert heartbeat(m.handle(CordonsChanged(cordoned=frozenset()), 2_000)).cordoned_log_dirs == ()


# --- directories that return, are added or are forgotten ------------------------------------------


def attached(directory_id: DirectoryId, path: str = "/new") -> DirectoryAttached:
    return DirectoryAttached(directory_id=directory_id, path=path)


def forgotten(directory_id: DirectoryId) -> DirectoryForgotten:
    return DirectoryForgotten(directory_id=directory_id)


def lost_b() -> LifecycleState:
    """A machine as of :func:`running` whose controller knows that B failed."""
    m = running()
    m.handle(dead(B), 1_000)
    m.handle(alive(), 1_010)
    return m


def test_returned_directory_is_registered_in_the_same_epoch() -> None:
    m = lost_b()
    asked = registration(m.handle(attached(B, "/b"), 2_000))
    assert asked.incarnation_id == m.identity.incarnation_id
    assert (asked.log_dirs, asked.log_dir_paths) == ((A, B, C), ("", "/b", ""))
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_010)
    assert AnnounceChanges(DirectoryChanges(attached=(B,))) in actions
    assert heartbeat(actions).offline_log_dirs == () and state_of(m) is BrokerState.RUNNING
    m.handle(alive(), 2_020)
    assert ArmReportDeadline(B, 33_000) in m.handle(dead(B), 3_000), "the directory may fail again"


def test_returned_directory_waits_until_its_failure_is_acknowledged() -> None:
    m = running()
    m.handle(dead(B), 1_000)
    m.handle(no(ErrorCode.NOT_CONTROLLER), 1_010)
    assert heartbeat(m.handle(attached(B), 1_020)).offline_log_dirs == (B,)
    m.handle(no(ErrorCode.NOT_CONTROLLER), 1_030)
    assert heartbeat(m.handle(WokeUp(), 1_130)).offline_log_dirs == (B,), (
        "the directory still counts as offline"
    )
    actions = m.handle(alive(), 1_140)
    assert DisarmReportDeadline(B) in actions
    asked = registration(actions)
    assert (asked.log_dirs, asked.clean_shutdown_epochs) == ((A, B, C), (EPOCH, -1, EPOCH))
    m.check_invariants()


def test_returned_directory_waits_until_its_assignments_are_reported() -> None:
    """The controller treats replicas of a cancelled move as alive in another directory.

    A leader among them would have lost records without a new leader epoch.
    """
    m, unreported = running(), ["t-0"]
    m.handle(dead(B, unreported=unreported), 1_000)
    m.handle(alive(), 1_010)
    assert heartbeat(m.handle(attached(B), 1_020)).offline_log_dirs == (B,)
    assert m.handle(alive(), 1_030) == [WakeAt(1_130)], "the next heartbeat is early"
    unreported.clear()
    m.handle(WokeUp(), 1_130)
    actions = m.handle(alive(), 1_140)
    assert DisarmReportDeadline(B) in actions
    assert registration(actions).log_dirs == (A, B, C)


def test_directory_that_failed_again_before_its_return_was_reported_stays_offline() -> None:
    m = running()
    m.handle(dead(B), 1_000)
    m.handle(attached(B), 1_010)
    m.handle(dead(B), 1_020)
    assert heartbeat(m.handle(alive(), 1_030)).offline_log_dirs == (B,)
    assert m.handle(alive(), 1_040) == [WakeAt(3_040)] and not m.unacknowledged_dirs


def test_returned_directory_is_announced_when_metadata_contains_the_amendment() -> None:
    """Otherwise the broker could lead in an outdated epoch until it replays the next one."""
    m = lost_b()
    registration(m.handle(attached(B), 2_000))
    answer = RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=90)
    actions = m.handle(answer, 2_010)
    assert not [a for a in actions if isinstance(a, AnnounceChanges)]
    assert not m.handle(MetadataReplayed(offset=89), 2_020)
    actions = m.handle(MetadataReplayed(offset=91), 2_030)
    assert AnnounceChanges(DirectoryChanges(attached=(B,))) in actions
    assert not m.handle(MetadataReplayed(offset=92), 2_040)


def test_late_heartbeat_that_removed_a_directory_is_corrected_by_an_amendment() -> None:
    """Both requests have the same epoch, and the next heartbeat does not mention online
    directories."""
    m = lost_b()
    m.handle(MetadataReplayed(offset=EPOCH), 1_990)
    m.handle(alive(), 1_991)
    registration(m.handle(attached(B), 2_000))
    m.handle(RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=90), 2_010)
    m.handle(alive(), 2_020)
    early = MetadataReplayed(offset=89, online_dirs=frozenset({A, C}))
    assert m.handle(early, 2_030) == [], "the metadata lacks the amendment"
    heartbeat(m.handle(WokeUp(), 4_030))
    assert m.handle(alive(), 4_040) == [WakeAt(6_040)]
    assert not m.handle(MetadataReplayed(offset=91, online_dirs=frozenset({A, C})), 4_050)[1:]
    heartbeat(m.handle(WokeUp(), 6_040))
    asked = registration(m.handle(alive(), 6_050))
    assert asked.log_dirs == (A, B, C) and set(asked.clean_shutdown_epochs) == {EPOCH}
    m.handle(RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=95), 6_060)
    assert m.handle(alive(), 6_070) == [WakeAt(8_070)], "the metadata may be late"


def test_late_amendment_that_added_a_failed_directory_is_corrected_by_another() -> None:
    """No heartbeat names an unregistered directory, which would otherwise stay online
    permanently."""
    m = running()
    m.handle(MetadataReplayed(offset=EPOCH), 990)
    m.handle(alive(), 991)
    registration(m.handle(attached(D), 1_000))
    m.handle(dead(D), 1_001)
    m.handle(RegistrationFailed(code=ErrorCode.REQUEST_TIMED_OUT, message=""), 1_010)
    assert registration(m.handle(alive(), 1_120)).log_dirs == (A, B, C)
    m.handle(RegistrationAnswered(broker_epoch=EPOCH, metadata_offset=90), 1_130)
    m.handle(alive(), 1_140)
    m.handle(MetadataReplayed(offset=91, online_dirs=frozenset({A, B, C, D})), 1_150)
    heartbeat(m.handle(WokeUp(), 3_140))
    assert registration(m.handle(alive(), 3_150)).log_dirs == (A, B, C)


def test_level_without_directories_triggers_no_amendment() -> None:
    m = from_before_directories()
    shown = MetadataReplayed(
        offset=60, level=MetadataVersion(14), knows_dirs=False, online_dirs=frozenset()
    )
    m.handle(shown, 10)
    heartbeat(m.handle(WokeUp(), 2_000))
    assert m.handle(alive(), 2_010) == [WakeAt(4_010)]


def test_several_directory_changes_share_one_amendment() -> None:
    m = lost_b()
    heartbeat(m.handle(WokeUp(), 2_000))
    assert m.handle(attached(D), 2_001) == []
    assert m.handle(forgotten(B), 2_002) == []
    asked = registration(m.handle(alive(), 2_010))
    assert (asked.log_dirs, asked.forgotten_log_dirs) == ((A, C, D), (B,))
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_020)
    assert AnnounceChanges(DirectoryChanges(attached=(D,), forgotten=(B,))) in actions
    assert m.handle(alive(), 2_030) == [WakeAt(4_030)], "the amendment is sent once"


def test_directory_change_during_an_amendment_causes_another_amendment() -> None:
    m = lost_b()
    registration(m.handle(attached(D), 2_000))
    assert m.handle(attached(B), 2_001) == []
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_010)
    assert AnnounceChanges(DirectoryChanges(attached=(D,))) in actions
    assert registration(m.handle(alive(), 2_020)).log_dirs == (A, B, C, D)


def test_forgotten_directory_is_omitted_and_its_deadline_ends() -> None:
    m = running()
    m.handle(dead(B), 1_000)
    m.handle(no(ErrorCode.NOT_CONTROLLER), 1_010)
    actions = m.handle(forgotten(B), 1_020)
    assert DisarmReportDeadline(B) in actions
    assert registration(actions).forgotten_log_dirs == (B,)
    failed = RegistrationFailed(code=ErrorCode.REQUEST_TIMED_OUT, message="")
    m.handle(failed, 1_030)
    assert heartbeat(m.handle(WokeUp(), 3_000)).offline_log_dirs == (), (
        "the controller may have forgotten the directory"
    )
    assert registration(m.handle(alive(), 3_010)).forgotten_log_dirs == (B,)


def test_refused_forget_keeps_the_directory_and_retries_other_changes() -> None:
    m = lost_b()
    heartbeat(m.handle(WokeUp(), 2_000))
    m.handle(attached(D), 2_001)
    m.handle(forgotten(B), 2_002)
    registration(m.handle(alive(), 2_010))
    refused = RegistrationFailed(code=ErrorCode.INVALID_REQUEST, message="t-0 has no other replica")
    actions = m.handle(refused, 2_020)
    refusal = only(actions, AnnounceRefusal)
    assert refusal.changes == DirectoryChanges(forgotten=(B,))
    assert refusal.error.code is ErrorCode.INVALID_REQUEST and "t-0" in str(refusal.error)
    assert heartbeat(actions).offline_log_dirs == (B,)
    asked = registration(m.handle(alive(), 2_030))
    assert (asked.log_dirs, asked.forgotten_log_dirs) == ((A, C, D), ())


def test_refused_attach_drops_the_directory_and_keeps_the_broker_running() -> None:
    m = running()
    registration(m.handle(attached(D), 1_000))
    refused = RegistrationFailed(code=ErrorCode.INVALID_REQUEST, message="it is another broker's")
    actions = m.handle(refused, 1_010)
    assert only(actions, AnnounceRefusal).changes == DirectoryChanges(attached=(D,))
    assert m.handle(alive(), 1_020) == [WakeAt(3_020)]
    assert (m.broker_epoch, state_of(m)) == (EPOCH, BrokerState.RUNNING)


def test_attached_directory_that_failed_before_the_answer_is_removed_by_an_amendment() -> None:
    """The registration may have arrived; only another registration removes the directory."""
    m = running()
    registration(m.handle(attached(D), 1_000))
    m.handle(dead(D), 1_001)
    lost = RegistrationFailed(code=ErrorCode.REQUEST_TIMED_OUT, message="")
    beat = heartbeat(m.handle(lost, 1_010))
    assert beat.offline_log_dirs == (), "the controller may not know the directory"
    assert registration(m.handle(alive(), 1_120)).log_dirs == (A, B, C)
    actions = m.handle(RegistrationAnswered(broker_epoch=EPOCH), 1_130)
    assert DisarmReportDeadline(D) in actions


def test_directory_that_fails_before_its_return_was_reported_can_return_again() -> None:
    """A registration reports the failure, because heartbeats name registered directories only."""
    m = lost_b()
    registration(m.handle(attached(D), 2_000))
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_010)
    m.handle(attached(B), 2_020)
    m.handle(dead(B), 2_030)
    m.handle(attached(B), 2_040)
    assert registration(m.handle(alive(), 2_050)).log_dirs == (A, C, D)
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), 2_060)
    assert registration(m.handle(alive(), 2_070)).log_dirs == (A, B, C, D)


# --- invalid events and random sequences ----------------------------------------------------------


@pytest.mark.parametrize(
    "event", [alive(), no(ErrorCode.NOT_CONTROLLER), RegistrationAnswered(broker_epoch=EPOCH)]
)
def test_unexpected_answer_raises_invalid_transition_and_changes_nothing(event: Event) -> None:
    m = running()
    before = repr(m)
    with pytest.raises(InvalidTransition) as caught:
        m.handle(event, 0)
    assert repr(m) == before and "BecameReady" in str(caught.value)


class LifecycleMachine(RuleBasedStateMachine):
    """Random failures of directories, requests and answers, against a model of the controller."""

    def __init__(self) -> None:
        super().__init__()
        self.m = machine()
        self.now_ms = 0
        self.request: BrokerRegistrationRequest | BrokerHeartbeatRequest | None = None
        #: A heartbeat that timed out at the broker and is still in flight.
        self.late: BrokerHeartbeatRequest | None = None
        self.epoch = 0
        self.offset = 0
        self.level = LATEST_METADATA_VERSION
        self.known_online: set[DirectoryId] = set()
        self.disarmed: set[DirectoryId] = set()
        self.dead: set[DirectoryId] = set()
        self.impaired: dict[DirectoryId, LogDirState] = {}
        self.known_impaired: dict[DirectoryId, LogDirState] = {}
        #: Directories that failed while the controller has them online and has not received the
        #: failure.
        self.unheard: set[DirectoryId] = set()
        #: Directories that failed since the pending request was sent.
        self.died_since_sent: set[DirectoryId] = set()
        #: Directories that were not served continuously since the last answered registration.
        self.broken = {A, B, C}
        self.run(Started())

    def run(self, event: Event) -> None:
        self.now_ms += 1
        for action in self.m.handle(event, self.now_ms):
            match action:
                case SendRegistration(request) | SendHeartbeat(request):
                    assert self.request is None, "one request is in flight at a time"
                    self.request = request
                    self.died_since_sent = set()
                    if isinstance(request, BrokerRegistrationRequest):
                        self.check_registration(request)
                case DisarmReportDeadline(directory_id) if directory_id in self.dead:
                    self.disarmed.add(directory_id)
                case _:
                    pass
        self.m.check_invariants()

    def check_registration(self, request: BrokerRegistrationRequest) -> None:
        """Check that failures are reported before a return, and that broken copies are not
        clean."""
        assert not self.unheard.intersection(request.log_dirs), "the failure comes first"
        for directory_id, epoch in zip(
            request.log_dirs, request.clean_shutdown_epochs, strict=True
        ):
            assert (epoch == -1) is (directory_id in self.broken), (directory_id, epoch)

    @property
    def online(self) -> set[DirectoryId]:
        return {A, B, C} - self.dead

    @rule(directory_id=st.sampled_from([A, B, C]))
    def fail_directory(self, directory_id: DirectoryId) -> None:
        self.dead.add(directory_id)
        self.impaired.pop(directory_id, None)
        self.died_since_sent.add(directory_id)
        self.broken.add(directory_id)
        if directory_id in self.known_online:
            self.unheard.add(directory_id)
        self.run(dead(directory_id))

    @rule(directory_id=st.sampled_from([A, B, C]), state=st.sampled_from([FULL, HUNG]))
    def impair_directory(self, directory_id: DirectoryId, state: LogDirState) -> None:
        if directory_id in self.m.unacknowledged_dirs:
            return  # A returning directory reports its impairment once it is in service.
        if directory_id not in self.dead:
            self.impaired[directory_id] = state
        self.run(DirectoryImpaired(directory_id=directory_id, state=state))

    @rule(directory_id=st.sampled_from([A, B, C]))
    def recover_directory(self, directory_id: DirectoryId) -> None:
        self.impaired.pop(directory_id, None)
        self.run(well(directory_id))

    @rule(directory_id=st.sampled_from([A, B, C]))
    def return_directory(self, directory_id: DirectoryId) -> None:
        if directory_id in self.dead:
            self.dead.discard(directory_id)
            self.disarmed.discard(directory_id)
            self.run(attached(directory_id))

    @rule()
    def settle(self) -> None:
        """After a period without failures the controller knows the exact state."""
        level = self.level if self.level.has_directories else LATEST_METADATA_VERSION
        for _ in range(16):
            self.replay_metadata(level=level, knows_dirs=True)
            if self.request is None:
                self.run(WokeUp())
            else:
                self.finish_request(arrives=True, returns=True, forgets=False)
        if self.m.broker_epoch == NOT_REGISTERED:
            return
        assert self.known_impaired in (self.impaired, {})
        unreported = self.impaired.keys() - self.known_impaired.keys()
        assert self.known_online == self.online - unreported, "at a low level they are offline"

    @rule(level=st.sampled_from(MetadataVersion), knows_dirs=st.booleans())
    def replay_metadata(self, level: MetadataVersion, knows_dirs: bool) -> None:
        self.level = level
        online = frozenset(self.known_online)
        self.run(
            MetadataReplayed(
                offset=self.offset, level=level, knows_dirs=knows_dirs, online_dirs=online
            )
        )

    @rule()
    def deliver_late_heartbeat(self) -> None:
        """The controller treats the heartbeat as current: an amendment does not change the
        epoch."""
        late, self.late = self.late, None
        if late is not None:
            self.receive_heartbeat(late)

    @rule()
    def wake_up(self) -> None:
        self.run(WokeUp())

    @rule()
    def lose_connection(self) -> None:
        self.run(ControllerLost())

    @precondition(lambda self: self.request is not None)
    @rule(arrives=st.booleans(), returns=st.booleans(), forgets=st.booleans())
    def answer_request(self, arrives: bool, returns: bool, forgets: bool) -> None:
        self.finish_request(arrives, returns, forgets)

    def finish_request(self, arrives: bool, returns: bool, forgets: bool) -> None:
        request, self.request = self.request, None
        if isinstance(request, BrokerRegistrationRequest):
            if arrives:
                self.epoch += 1
                self.offset += 1
                self.known_online = set(request.log_dirs)
                self.unheard = self.known_online & self.died_since_sent
            if arrives and returns:
                self.broken -= self.known_online - self.died_since_sent
                self.run(
                    RegistrationAnswered(
                        broker_epoch=BrokerEpoch(self.epoch), metadata_offset=self.offset
                    )
                )
            else:
                self.run(RegistrationFailed(code=ErrorCode.REQUEST_TIMED_OUT, message=""))
            return
        assert request is not None
        if forgets:
            self.late = None
            self.run(no(ErrorCode.STALE_BROKER_EPOCH))
            return
        if arrives:
            self.receive_heartbeat(request)
        else:
            self.late = request
        self.run(alive() if arrives and returns else no(ErrorCode.REQUEST_TIMED_OUT))

    def receive_heartbeat(self, request: BrokerHeartbeatRequest) -> None:
        self.offset += 1
        self.known_online -= set(request.offline_log_dirs)
        self.unheard -= set(request.offline_log_dirs)
        self.known_impaired = dict(impaired(request))

    @invariant()
    def acknowledged_failures_are_known(self) -> None:
        assert not self.disarmed & self.known_online, (self.disarmed, self.known_online)
        assert self.dead <= self.disarmed | self.m.unacknowledged_dirs


TestAnyOrderOfEvents = LifecycleMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_registration_refused_with_foreign_metadata_is_retried_without_timeout() -> None:
    m = machine()
    m.handle(Started(), 0)
    now_ms = 0
    for _ in range(100):
        now_ms += 10_000
        refused = RegistrationFailed(code=ErrorCode.FOREIGN_METADATA, message="restore it")
        woken = only(m.handle(refused, now_ms), WakeAt)
        now_ms = woken.at_ms
        registration(m.handle(WokeUp(), now_ms))
    m.handle(RegistrationAnswered(broker_epoch=EPOCH), now_ms)
    assert m.broker_epoch == EPOCH


def test_heartbeat_refused_with_foreign_metadata_keeps_the_broker_epoch() -> None:
    m = registered()
    m.handle(no(ErrorCode.FOREIGN_METADATA), 10)
    assert m.broker_epoch == EPOCH, "the right controller still knows the broker"
