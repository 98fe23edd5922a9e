"""``Partition``: roles, guards, high watermark and ISR of one replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kraftjbod.broker.partitions.follower_state import Moments, Speaker
from kraftjbod.broker.partitions.isr_change import IsrVerdict
from kraftjbod.broker.partitions.partition import (
    UNKNOWN_OFFSET,
    Partition,
    Role,
    RoleChange,
)
from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OperatingError,
)
from kraftjbod.core.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    TopicPartition,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.metadata.records import ImpairedLogDir
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration

ME, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
DIRS = {b: DirectoryId(bytes([65 + b]) * 16) for b in (ME, TWO, THREE)}
EPOCH = BrokerEpoch(7)
LAG_MS = 30_000
#: Fetch sessions of the followers in tests without late requests.
SPEAKERS = {b: Speaker() for b in (TWO, THREE)}


def end_of(p: Partition, broker_id: BrokerId) -> int:
    """The log end offset of the follower that the leader knows."""
    follower = p.follower(broker_id)
    return UNKNOWN_OFFSET if follower is None else follower.log_end_offset


def state(
    *,
    leader: int = 1,
    isr: Sequence[int] = (1, 2, 3),
    epoch: int = 5,
    partition_epoch: int = 10,
    replicas: Sequence[int] = (1, 2, 3),
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=tuple(map(BrokerId, replicas)),
        directories=tuple(DIRS[BrokerId(b)] for b in replicas),
        isr=tuple(map(BrokerId, isr)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(partition_epoch),
        leader_recovering=False,
    )


def broker(
    broker_id: BrokerId,
    *,
    fenced: bool = False,
    leaving: bool = False,
    dir_online: bool = True,
    impaired: LogDirState | None = None,
    epoch: BrokerEpoch = EPOCH,
) -> BrokerRegistration:
    other = DirectoryId(b"z" * 16)
    return BrokerRegistration(
        broker_id=broker_id,
        epoch=epoch,
        incarnation_id=Uuid(b"i" * 16),
        listeners=(),
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=leaving,
        log_dirs=(DIRS[broker_id], other) if dir_online else (other,),
        impaired_log_dirs=()
        if impaired is None
        else (ImpairedLogDir(directory_id=DIRS[broker_id], state=impaired),),
    )


def make(
    *, end: int = 100, hw: int = UNKNOWN_OFFSET, start: int = 0, min_isr: int = 1
) -> Partition:
    return Partition(
        topic_partition=TopicPartition("t", 0),
        topic_id=TopicId(b"t" * 16),
        broker_id=ME,
        log_start_offset=start,
        log_end_offset=end,
        checkpointed_high_watermark=hw,
        min_insync_replicas=min_isr,
        replica_lag_time_max_ms=LAG_MS,
    )


def leader(*, end: int = 100, min_isr: int = 1, isr: Sequence[int] = (1, 2, 3)) -> Partition:
    partition = make(end=end, min_isr=min_isr)
    assert partition.apply(state(isr=isr), log_end_offset=end, now_ms=0) is RoleChange.LEADER
    return partition


def fetch(p: Partition, broker_id: BrokerId, offset: int, now_ms: int = 0) -> bool:
    return bool(
        p.follower_fetched(
            broker_id,
            fetch_offset=offset,
            now_ms=now_ms,
            broker_epoch=EPOCH,
            speaker=SPEAKERS[broker_id],
            moment=0,
        )
    )


# --- roles ---------------------------------------------------------------------------------------


def test_partition_role_is_leader_only_if_metadata_names_this_broker() -> None:
    p = make()
    assert p.apply(state(leader=2), log_end_offset=100, now_ms=0) is RoleChange.FOLLOWER
    assert p.role is Role.FOLLOWER and p.leader == TWO
    change = p.apply(state(epoch=6, partition_epoch=11), log_end_offset=120, now_ms=0)
    assert change is RoleChange.LEADER and p.leader_epoch_start_offset == 120
    change = p.apply(state(leader=3, epoch=7, partition_epoch=12), log_end_offset=130, now_ms=0)
    assert change is RoleChange.FOLLOWER and p.leader_epoch_start_offset == UNKNOWN_OFFSET


def test_new_leader_epoch_of_the_same_leader_resets_follower_states() -> None:
    """A leader epoch may grow without a new leader."""
    p = leader()
    fetch(p, TWO, 100)
    change = p.apply(state(epoch=6, partition_epoch=11), log_end_offset=150, now_ms=0)
    assert change is RoleChange.LEADER
    assert p.leader_epoch_start_offset == 150 and end_of(p, TWO) == UNKNOWN_OFFSET


def test_partition_change_in_the_same_leader_epoch_keeps_role_and_followers() -> None:
    p = leader()
    fetch(p, TWO, 90)
    change = p.apply(state(isr=(1, 2), partition_epoch=11), log_end_offset=100, now_ms=0)
    assert change is RoleChange.NONE and end_of(p, TWO) == 90
    assert p.is_under_replicated


def test_is_sent_again_detects_the_offset_of_the_previous_response() -> None:
    p = leader()
    assert [p.is_sent_again(TWO, offset) for offset in (5, 5, 9, 5)] == [False, True, False, False]
    assert not any(p.is_sent_again(broker_id, 5) for broker_id in (THREE, ME, ME))
    # A new leader epoch resets the detection.
    p.apply(state(epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert not p.is_sent_again(TWO, 5)


def test_older_partition_metadata_is_ignored() -> None:
    p = leader()
    old = state(leader=2, epoch=4, partition_epoch=9)
    assert p.apply(old, log_end_offset=100, now_ms=0) is RoleChange.STALE
    assert p.is_leader


def test_partition_without_a_leader_is_a_follower() -> None:
    p = leader()
    change = p.apply(state(leader=-1, epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert change is RoleChange.FOLLOWER and p.leader == NO_LEADER


def test_offline_replica_stays_offline_after_metadata_changes() -> None:
    p = leader()
    p.mark_offline(DIRS[ME])
    change = p.apply(state(epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert change is RoleChange.NONE and p.role is Role.OFFLINE
    with pytest.raises(KafkaStorageError) as caught:
        p.require_leader(6)
    assert caught.value.directory_id == DIRS[ME]
    assert "offline" in repr(p)


# --- guards --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected_epoch", "code"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_require_leader_with_wrong_epoch_raises(expected_epoch: int, code: ErrorCode) -> None:
    p = leader()
    p.require_leader(5)
    p.require_leader()
    with pytest.raises(OperatingError) as caught:
        p.require_leader(expected_epoch)
    assert caught.value.code is code


def test_require_leader_of_a_follower_raises_with_and_without_an_epoch() -> None:
    p = make()
    p.apply(state(leader=2), log_end_offset=100, now_ms=0)
    for expected in (5, -1):
        with pytest.raises(NotLeaderOrFollowerError):
            p.require_leader(expected)
        p.require_replica(expected)


def test_require_replica_rejects_new_and_offline_replicas_and_other_epochs() -> None:
    p = make()
    with pytest.raises(NotLeaderOrFollowerError):
        p.require_replica()
    for leads in (leader(), make()):
        leads.apply(state(leader=2), log_end_offset=100, now_ms=0)
        leads.require_replica(5)
        with pytest.raises(OperatingError) as caught:
            leads.require_replica(4)
        assert caught.value.code is ErrorCode.FENCED_LEADER_EPOCH
        leads.mark_offline(DIRS[ME])
        with pytest.raises(KafkaStorageError):
            leads.require_replica()


def test_min_insync_replicas_applies_only_to_acks_all() -> None:
    p = leader(min_isr=2, isr=(1,))
    p.require_appendable(1)
    with pytest.raises(OperatingError) as caught:
        p.require_appendable(-1)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    p.set_min_insync_replicas(1)
    p.require_appendable(-1)


def test_min_insync_replicas_is_limited_by_the_replication_factor() -> None:
    p = make(min_isr=2)
    p.apply(state(replicas=(1,), isr=(1,)), log_end_offset=100, now_ms=0)
    p.require_appendable(-1)


# --- high watermark ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpointed", "start", "end", "expected"),
    [(-1, 0, 100, 0), (-1, 40, 100, 40), (70, 0, 100, 70), (130, 0, 100, 100), (10, 40, 100, 40)],
)
def test_initial_high_watermark_lies_within_the_log(
    checkpointed: int, start: int, end: int, expected: int
) -> None:
    assert make(hw=checkpointed, start=start, end=end).high_watermark == expected


def test_high_watermark_is_the_least_log_end_offset_in_the_isr() -> None:
    p = leader()
    assert not fetch(p, TWO, 100)
    assert fetch(p, THREE, 80) and p.high_watermark == 80
    assert fetch(p, THREE, 100) and p.high_watermark == 100
    assert not p.log_end_moved(110)
    assert not fetch(p, TWO, 110)
    assert fetch(p, THREE, 105) and p.high_watermark == 105


def test_new_leader_advances_the_high_watermark_after_all_isr_members_fetched() -> None:
    p = make(hw=50)
    p.apply(state(), log_end_offset=100, now_ms=0)
    fetch(p, TWO, 100)
    assert p.high_watermark == 50
    fetch(p, THREE, 60)
    assert p.high_watermark == 60


def test_sole_replica_advances_the_high_watermark_on_append() -> None:
    p = make()
    p.apply(state(replicas=(1,), isr=(1,)), log_end_offset=100, now_ms=0)
    assert p.high_watermark == 100
    assert p.log_end_moved(101) and p.high_watermark == 101


def test_high_watermark_does_not_decrease() -> None:
    p = leader()
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    assert not fetch(p, THREE, 20)
    assert p.high_watermark == 100
    p.apply(state(leader=2, epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert not p.fetched_from_leader(leader_high_watermark=30, log_end_offset=100)
    assert p.high_watermark == 100


def test_high_watermark_advances_when_metadata_shrinks_the_isr() -> None:
    """Kafka waits for such a replica for up to 30 s; here its failure delays no response."""
    p = leader()
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    p.log_end_moved(150)
    fetch(p, TWO, 150)
    assert p.high_watermark == 100
    p.apply(state(isr=(1, 2), partition_epoch=11), log_end_offset=150, now_ms=0)
    assert p.high_watermark == 150


def test_follower_high_watermark_is_limited_by_its_log_end_offset() -> None:
    p = make()
    p.apply(state(leader=2), log_end_offset=100, now_ms=0)
    assert p.fetched_from_leader(leader_high_watermark=90, log_end_offset=110)
    assert p.high_watermark == 90
    assert p.fetched_from_leader(leader_high_watermark=200, log_end_offset=120)
    assert p.high_watermark == 120
    p.truncated(105)
    assert (p.high_watermark, p.log_end_offset) == (105, 105)


def test_high_watermark_below_min_insync_replicas_does_not_advance() -> None:
    p = leader(min_isr=2)
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    p.apply(state(isr=(1,), partition_epoch=11), log_end_offset=100, now_ms=0)
    assert p.is_under_min_isr
    assert not p.log_end_moved(120)
    assert p.acks_state(120) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    p.apply(state(isr=(1, 2), partition_epoch=12), log_end_offset=120, now_ms=0)
    assert p.acks_state(120) is None
    fetch(p, TWO, 120)
    assert p.acks_state(120) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("broker_id", "broker_epoch", "leader_epoch"),
    [
        (BrokerId(9), EPOCH, 5),
        (ME, EPOCH, 5),
        (TWO, BrokerEpoch(-1), 5),
        (TWO, BrokerEpoch(EPOCH - 1), 5),
        (TWO, BrokerEpoch(EPOCH + 1), 5),
        (TWO, EPOCH, -1),
    ],
    ids=[
        "no_replica",
        "the_leader",
        "no_epoch",
        "former_incarnation",
        "unknown_incarnation",
        "no_leader_epoch",
    ],
)
def test_require_follower_rejects_other_brokers_and_epochs(
    broker_id: BrokerId, broker_epoch: BrokerEpoch, leader_epoch: int
) -> None:
    p, brokers = leader(), {b: broker(b) for b in (ME, TWO, THREE)}
    brokers[BrokerId(9)] = replace(broker(TWO), broker_id=BrokerId(9))
    p.require_follower(TWO, broker_epoch=EPOCH, expected_epoch=5, brokers=brokers)
    with pytest.raises(NotLeaderOrFollowerError):
        p.require_follower(
            broker_id, broker_epoch=broker_epoch, expected_epoch=leader_epoch, brokers=brokers
        )


# --- shrinking the ISR ---------------------------------------------------------------------------


def test_isr_shrink_candidates_are_followers_that_lag_too_long() -> None:
    p = leader()
    fetch(p, TWO, 100)
    assert p.isr_shrink_candidates(LAG_MS) == ()
    assert p.isr_shrink_candidates(LAG_MS + 1) == (THREE,)


def test_follower_at_the_end_of_an_idle_log_is_no_isr_shrink_candidate() -> None:
    p = leader()
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    assert p.isr_shrink_candidates(100 * LAG_MS) == ()


def test_follower_that_reaches_the_previous_log_end_is_no_isr_shrink_candidate() -> None:
    """Under steady load no follower reaches the current log end; the previous one is sufficient."""
    p = leader()
    fetch(p, THREE, 100)
    fetch(p, TWO, 90, now_ms=1_000)
    p.log_end_moved(200)
    fetch(p, THREE, 200, now_ms=1_500)
    fetch(p, TWO, 100, now_ms=2_000)
    assert p.isr_shrink_candidates(1_000 + LAG_MS) == ()
    assert p.isr_shrink_candidates(1_001 + LAG_MS) == (TWO,)


def test_pending_isr_shrink_takes_effect_with_metadata_only() -> None:
    """The controller may refuse the change, so that the replica stays a member.

    Its response may be faster than a ``min.insync.replicas`` that the controller considered.
    """
    p = leader()
    fetch(p, TWO, 100)
    change = p.begin_isr_change((ME, TWO), own_broker_epoch=BrokerEpoch(3))
    assert change.isr_broker_epochs == (3, EPOCH)
    assert (change.leader_epoch, change.partition_epoch) == (5, 10)
    assert p.high_watermark == 0 and p.isr_shrink_candidates(10 * LAG_MS) == ()
    taken = p.isr_change_committed(
        change, leader_epoch=LeaderEpoch(5), partition_epoch=PartitionEpoch(11), isr=(ME, TWO)
    )
    assert not taken and p.high_watermark == 0 and p.pending_isr_change is change
    p.set_min_insync_replicas(3)
    p.apply(state(isr=(1, 2), partition_epoch=11), log_end_offset=100, now_ms=0)
    assert p.isr == (ME, TWO) and p.partition_epoch == 11 and p.pending_isr_change is None
    assert p.high_watermark == 0, "the earlier min.insync.replicas of 3 still applies"
    p.set_min_insync_replicas(2)
    assert p.high_watermark == 100


# --- growing the ISR -----------------------------------------------------------------------------


def started(p: Partition, broker_id: BrokerId, start: int, *, end: int = 100) -> None:
    """Fetch from ``end`` on, with log start offset ``start``."""
    p.follower_fetched(
        broker_id,
        fetch_offset=end,
        now_ms=0,
        broker_epoch=EPOCH,
        speaker=SPEAKERS[broker_id],
        moment=0,
        log_start_offset=start,
    )


def test_isr_expand_is_wanted_once_the_follower_has_all_committed_records() -> None:
    p = leader(isr=(1, 2))
    fetch(p, TWO, 100)
    brokers = {THREE: broker(THREE)}
    assert not p.isr_expand_wanted(THREE, brokers)
    fetch(p, THREE, 99)
    assert not p.isr_expand_wanted(THREE, brokers)
    fetch(p, THREE, 100)
    assert p.isr_expand_wanted(THREE, brokers)
    assert not p.isr_expand_wanted(TWO, {TWO: broker(TWO)})


class Session:
    """A fetch session of broker THREE at the leader: requests and responses in turn."""

    def __init__(self, p: Partition, moments: Moments) -> None:
        self.p, self.moments, self.speaker = p, moments, Speaker()

    def request(self, offset: int) -> bool:
        """Send a fetch request and return whether the leader accepted it."""
        self.speaker.spoke()
        taken = self.p.follower_fetched(
            THREE,
            fetch_offset=offset,
            now_ms=0,
            broker_epoch=EPOCH,
            speaker=self.speaker,
            moment=self.moments.next(),
        )
        return taken is not None

    def answer(self) -> None:
        self.speaker.answered_at = self.moments.next()


@pytest.mark.parametrize("event", ["left_the_isr", "broker_registered"])
def test_late_fetch_of_a_former_copy_does_not_expand_the_isr(event: str) -> None:
    """The copy may have been recreated or truncated in the same epochs."""
    p, moments, brokers = leader(isr=(1, 2)), Moments(), {THREE: broker(THREE)}
    old, late = Session(p, moments), Session(p, moments)
    assert old.request(100)
    old.answer()
    assert p.isr_expand_wanted(THREE, brokers)
    if event == "left_the_isr":
        after = state(isr=(1, 2), partition_epoch=11)
        p.apply(after, log_end_offset=100, now_ms=0, moment=moments.next())
    else:
        p.broker_registered(THREE, moments.next())
    assert not p.isr_expand_wanted(THREE, brokers), "the known state is reset"
    assert not old.request(100), "the request is older than the event"
    assert not late.request(100)
    assert not p.isr_expand_wanted(THREE, brokers)
    new = Session(p, moments)
    assert not new.request(90), "the request may be late as well"
    new.answer()
    assert new.request(90)
    assert (end_of(p, THREE), p.isr_expand_wanted(THREE, brokers)) == (90, False)
    old.answer()
    new.answer()
    assert new.request(100) and p.isr_expand_wanted(THREE, brokers)
    assert not old.request(120), "the fetch session was abandoned"
    assert end_of(p, THREE) == 100


def test_isr_expand_is_wanted_once_the_follower_deleted_all_deleted_records() -> None:
    """DeleteRecords did not wait for a follower that was absent or restarted."""
    p = leader(isr=(1, 2))
    brokers = {THREE: broker(THREE)}
    started(p, THREE, 6)
    assert not p.isr_expand_wanted(THREE, brokers, log_start_offset=7)
    started(p, THREE, 7)
    assert p.isr_expand_wanted(THREE, brokers, log_start_offset=7)


def test_idle_follower_joins_the_isr_without_repeating_its_offset() -> None:
    p, moments, brokers = leader(isr=(1, 2)), Moments(), {THREE: broker(THREE)}
    session = Session(p, moments)
    assert session.request(100)
    session.answer()
    p.broker_registered(THREE, moments.next())
    session.speaker.spoke()
    assert not p.isr_expand_wanted(THREE, brokers), "the request may be older than the registration"
    session.answer()
    assert not p.isr_expand_wanted(THREE, brokers), "the response may be lost"
    session.speaker.spoke()
    assert p.isr_expand_wanted(THREE, brokers)
    p.follower_left(THREE, session.speaker)
    assert not p.isr_expand_wanted(THREE, brokers), "the session continues with other partitions"


def test_isr_expand_requires_the_start_of_the_leader_epoch() -> None:
    p = make(hw=50)
    p.apply(state(isr=(1, 2)), log_end_offset=100, now_ms=0)
    fetch(p, THREE, 60)
    assert p.high_watermark == 50
    assert not p.isr_expand_wanted(THREE, {THREE: broker(THREE)})


@pytest.mark.parametrize(
    "registration",
    [
        None,
        broker(THREE, fenced=True),
        broker(THREE, leaving=True),
        broker(THREE, dir_online=False),
        broker(THREE, impaired=LogDirState.SATURATED),
        broker(THREE, impaired=LogDirState.STALLED),
        broker(THREE, epoch=BrokerEpoch(EPOCH + 1)),
    ],
    ids=[
        "unregistered",
        "fenced",
        "shutting_down",
        "dir_offline",
        "dir_saturated",
        "dir_stalled",
        "newer_incarnation",
    ],
)
def test_isr_expand_is_not_wanted_for_an_unavailable_follower(
    registration: BrokerRegistration | None,
) -> None:
    p = leader(isr=(1, 2))
    fetch(p, THREE, 100)
    assert not p.isr_expand_wanted(THREE, {} if registration is None else {THREE: registration})


def test_high_watermark_waits_for_a_pending_isr_member() -> None:
    """The controller may have added the replica already and may elect it."""
    p = leader(isr=(1, 2))
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    p.begin_isr_change((ME, TWO, THREE), own_broker_epoch=BrokerEpoch(3))
    p.log_end_moved(150)
    fetch(p, TWO, 150)
    assert p.high_watermark == 100
    fetch(p, THREE, 150)
    assert p.high_watermark == 150


@pytest.mark.parametrize(
    ("code", "verdict", "is_pending"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, IsrVerdict.ROLLED_BACK, False),
        (ErrorCode.INVALID_UPDATE_VERSION, IsrVerdict.AWAIT_METADATA, True),
        (ErrorCode.NOT_CONTROLLER, IsrVerdict.RETRY, True),
    ],
)
def test_refused_isr_change_is_rolled_back_or_stays_pending(
    code: ErrorCode, verdict: IsrVerdict, is_pending: bool
) -> None:
    p = leader(isr=(1, 2))
    fetch(p, TWO, 100)
    p.log_end_moved(150)
    fetch(p, TWO, 150)
    fetch(p, THREE, 150)
    change = p.begin_isr_change((ME, TWO, THREE), own_broker_epoch=BrokerEpoch(3))
    assert p.isr_change_refused(change, code) is verdict
    assert (p.pending_isr_change is change) is is_pending


def test_metadata_newer_than_the_response_settles_the_isr_change() -> None:
    p = leader(isr=(1, 2))
    fetch(p, THREE, 100)
    change = p.begin_isr_change((ME, TWO, THREE), own_broker_epoch=BrokerEpoch(3))
    p.apply(state(isr=(1,), partition_epoch=12), log_end_offset=100, now_ms=0)
    assert p.pending_isr_change is None and p.high_watermark == 100
    late = p.isr_change_committed(
        change,
        leader_epoch=LeaderEpoch(5),
        partition_epoch=PartitionEpoch(11),
        isr=(ME, TWO, THREE),
    )
    assert not late and p.isr == (ME,) and p.partition_epoch == 12
    assert p.isr_change_refused(change, ErrorCode.INELIGIBLE_REPLICA) is IsrVerdict.STALE


# --- random sequences of events ------------------------------------------------------------------


class PartitionMachine(RuleBasedStateMachine):
    """Random fetches, appends, ISR changes and metadata, with the invariants of a partition."""

    def __init__(self) -> None:
        super().__init__()
        self.p = make(end=0, min_isr=2)
        self.meta = state(isr=(1, 2, 3))
        self.p.apply(self.meta, log_end_offset=0, now_ms=0)
        self.ends = {TWO: 0, THREE: 0}
        self.hw = 0

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        self.p.log_end_moved(self.p.log_end_offset + count)

    @rule(broker_id=st.sampled_from([TWO, THREE]), share=st.floats(0, 1))
    def fetch(self, broker_id: BrokerId, share: float) -> None:
        missing = self.p.log_end_offset - self.ends[broker_id]
        self.ends[broker_id] += int(missing * share + 0.5)
        fetch(self.p, broker_id, self.ends[broker_id])

    @precondition(lambda self: self.p.pending_isr_change is None)
    @rule(others=st.sets(st.sampled_from([TWO, THREE])))
    def change_isr(self, others: set[BrokerId]) -> None:
        for joining in others - set(self.p.isr):
            if not self.p.isr_expand_wanted(joining, {b: broker(b) for b in (TWO, THREE)}):
                return
        self.p.begin_isr_change((ME, *sorted(others)), own_broker_epoch=BrokerEpoch(3))

    @precondition(lambda self: self.p.pending_isr_change is not None)
    @rule(commits=st.booleans(), by_metadata=st.booleans())
    def settle(self, commits: bool, by_metadata: bool) -> None:
        change = self.p.pending_isr_change
        assert change is not None
        epoch = PartitionEpoch(self.p.partition_epoch + 1)
        if not commits:
            self.p.isr_change_refused(change, ErrorCode.INELIGIBLE_REPLICA)
        elif by_metadata:
            after = state(isr=change.isr, partition_epoch=epoch)
            self.p.apply(after, log_end_offset=self.p.log_end_offset, now_ms=0)
        else:
            self.p.isr_change_committed(
                change, leader_epoch=LeaderEpoch(5), partition_epoch=epoch, isr=change.isr
            )

    @invariant()
    def high_watermark_is_replicated_and_never_decreases(self) -> None:
        members = set(self.p.isr) | set(
            self.p.pending_isr_change.isr if self.p.pending_isr_change else ()
        )
        assert self.hw <= self.p.high_watermark <= self.p.log_end_offset
        grew = self.p.high_watermark > self.hw
        self.hw = self.p.high_watermark
        for member in members - {ME}:
            assert self.ends[member] >= self.hw, (member, self.p)
        assert not (grew and self.p.is_under_min_isr)

    @invariant()
    def high_watermark_waits_for_members_only(self) -> None:
        if not self.p.is_under_min_isr and self.p.pending_isr_change is None:
            members = [self.ends[m] for m in self.p.isr if m != ME]
            known = [end_of(self.p, m) for m in self.p.isr if m != ME]
            if UNKNOWN_OFFSET not in known:
                assert self.p.high_watermark >= min([self.p.log_end_offset, *members])


TestAnyOrderOfEvents = PartitionMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
