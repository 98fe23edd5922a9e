"""Roles, guards, high watermark and ISR of one replica, as short stories."""

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
#: Their sessions, of tests in which nothing is late.
SPEAKERS = {b: Speaker() for b in (TWO, THREE)}


def end_of(p: Partition, broker_id: BrokerId) -> int:
    """Where that follower's log ends as far as its leader knows."""
    follower = p._followers.get(broker_id)
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


def test_a_replica_follows_then_leads_then_follows() -> None:
    p = make()
    assert p.apply(state(leader=2), log_end_offset=100, now_ms=0) is RoleChange.FOLLOWER
    assert p.role is Role.FOLLOWER and p.leader == TWO
    change = p.apply(state(epoch=6, partition_epoch=11), log_end_offset=120, now_ms=0)
    assert change is RoleChange.LEADER and p.leader_epoch_start_offset == 120
    change = p.apply(state(leader=3, epoch=7, partition_epoch=12), log_end_offset=130, now_ms=0)
    assert change is RoleChange.FOLLOWER and p.leader_epoch_start_offset == UNKNOWN_OFFSET


def test_the_same_leader_in_a_new_epoch_begins_anew() -> None:
    """A leader epoch may grow without a new leader; what was known of followers is void then."""
    p = leader()
    fetch(p, TWO, 100)
    change = p.apply(state(epoch=6, partition_epoch=11), log_end_offset=150, now_ms=0)
    assert change is RoleChange.LEADER
    assert p.leader_epoch_start_offset == 150 and end_of(p, TWO) == UNKNOWN_OFFSET


def test_a_change_within_the_epoch_keeps_the_role_and_the_followers() -> None:
    p = leader()
    fetch(p, TWO, 90)
    change = p.apply(state(isr=(1, 2), partition_epoch=11), log_end_offset=100, now_ms=0)
    assert change is RoleChange.NONE and end_of(p, TWO) == 90
    assert p.is_under_replicated


def test_a_follower_that_is_sent_the_same_again_is_noticed_once_per_answer() -> None:
    p = leader()
    assert [p.is_sent_again(TWO, offset) for offset in (5, 5, 9, 5)] == [False, True, False, False]
    assert not any(p.is_sent_again(broker_id, 5) for broker_id in (THREE, ME, ME))
    # Another epoch knows nothing of it.
    p.apply(state(epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert not p.is_sent_again(TWO, 5)


def test_older_metadata_is_ignored() -> None:
    p = leader()
    old = state(leader=2, epoch=4, partition_epoch=9)
    assert p.apply(old, log_end_offset=100, now_ms=0) is RoleChange.STALE
    assert p.is_leader


def test_without_a_leader_the_replica_follows_nobody() -> None:
    p = leader()
    change = p.apply(state(leader=-1, epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert change is RoleChange.FOLLOWER and p.leader == NO_LEADER


def test_an_offline_replica_stays_offline_whatever_metadata_says() -> None:
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
def test_a_wrong_leader_epoch_is_refused(expected_epoch: int, code: ErrorCode) -> None:
    p = leader()
    p.require_leader(5)
    p.require_leader()
    with pytest.raises(OperatingError) as caught:
        p.require_leader(expected_epoch)
    assert caught.value.code is code


def test_a_follower_is_not_the_leader_even_in_the_right_epoch() -> None:
    p = make()
    p.apply(state(leader=2), log_end_offset=100, now_ms=0)
    for expected in (5, -1):
        with pytest.raises(NotLeaderOrFollowerError):
            p.require_leader(expected)
        p.require_replica(expected)


def test_any_replica_may_be_compared_but_for_one_that_is_offline_or_of_another_epoch() -> None:
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


def test_min_insync_replicas_counts_only_for_acks_all() -> None:
    p = leader(min_isr=2, isr=(1,))
    p.require_appendable(1)
    with pytest.raises(OperatingError) as caught:
        p.require_appendable(-1)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    p.set_min_insync_replicas(1)
    p.require_appendable(-1)


def test_min_insync_replicas_cannot_ask_for_more_than_there_are_replicas() -> None:
    p = make(min_isr=2)
    p.apply(state(replicas=(1,), isr=(1,)), log_end_offset=100, now_ms=0)
    p.require_appendable(-1)


# --- high watermark ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpointed", "start", "end", "expected"),
    [(-1, 0, 100, 0), (-1, 40, 100, 40), (70, 0, 100, 70), (130, 0, 100, 100), (10, 40, 100, 40)],
)
def test_the_first_high_watermark_lies_within_the_log(
    checkpointed: int, start: int, end: int, expected: int
) -> None:
    assert make(hw=checkpointed, start=start, end=end).high_watermark == expected


def test_the_high_watermark_is_the_least_end_in_the_isr() -> None:
    p = leader()
    assert not fetch(p, TWO, 100)
    assert fetch(p, THREE, 80) and p.high_watermark == 80
    assert fetch(p, THREE, 100) and p.high_watermark == 100
    assert not p.log_end_moved(110)
    assert not fetch(p, TWO, 110)
    assert fetch(p, THREE, 105) and p.high_watermark == 105


def test_a_new_leader_commits_nothing_before_all_of_the_isr_have_fetched() -> None:
    p = make(hw=50)
    p.apply(state(), log_end_offset=100, now_ms=0)
    fetch(p, TWO, 100)
    assert p.high_watermark == 50
    fetch(p, THREE, 60)
    assert p.high_watermark == 60


def test_a_lone_replica_commits_by_itself() -> None:
    p = make()
    p.apply(state(replicas=(1,), isr=(1,)), log_end_offset=100, now_ms=0)
    assert p.high_watermark == 100
    assert p.log_end_moved(101) and p.high_watermark == 101


def test_the_high_watermark_never_goes_back() -> None:
    p = leader()
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    assert not fetch(p, THREE, 20)
    assert p.high_watermark == 100
    p.apply(state(leader=2, epoch=6, partition_epoch=11), log_end_offset=100, now_ms=0)
    assert not p.fetched_from_leader(leader_high_watermark=30, log_end_offset=100)
    assert p.high_watermark == 100


def test_a_replica_that_metadata_takes_out_of_the_isr_is_not_waited_for_any_more() -> None:
    """Kafka goes on waiting for it for up to 30 s; here its death costs nobody an answer."""
    p = leader()
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    p.log_end_moved(150)
    fetch(p, TWO, 150)
    assert p.high_watermark == 100
    p.apply(state(isr=(1, 2), partition_epoch=11), log_end_offset=150, now_ms=0)
    assert p.high_watermark == 150


def test_a_follower_commits_what_it_has_of_what_the_leader_committed() -> None:
    p = make()
    p.apply(state(leader=2), log_end_offset=100, now_ms=0)
    assert p.fetched_from_leader(leader_high_watermark=90, log_end_offset=110)
    assert p.high_watermark == 90
    assert p.fetched_from_leader(leader_high_watermark=200, log_end_offset=120)
    assert p.high_watermark == 120
    p.truncated(105)
    assert (p.high_watermark, p.log_end_offset) == (105, 105)


def test_below_min_insync_replicas_the_high_watermark_stands_still() -> None:
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
    ("who", "broker_epoch", "leader_epoch"),
    [
        (BrokerId(9), EPOCH, 5),
        (ME, EPOCH, 5),
        (TWO, BrokerEpoch(-1), 5),
        (TWO, BrokerEpoch(EPOCH - 1), 5),
        (TWO, BrokerEpoch(EPOCH + 1), 5),
        (TWO, EPOCH, -1),
    ],
    ids=["no_replica", "the_leader", "no_epoch", "former_life", "not_heard_of", "no_leader_epoch"],
)
def test_who_is_no_follower_is_not_taken_for_one(
    who: BrokerId, broker_epoch: BrokerEpoch, leader_epoch: int
) -> None:
    p, brokers = leader(), {b: broker(b) for b in (ME, TWO, THREE)}
    brokers[BrokerId(9)] = replace(broker(TWO), broker_id=BrokerId(9))
    p.require_follower(TWO, broker_epoch=EPOCH, expected_epoch=5, brokers=brokers)
    with pytest.raises(NotLeaderOrFollowerError):
        p.require_follower(
            who, broker_epoch=broker_epoch, expected_epoch=leader_epoch, brokers=brokers
        )


# --- shrinking the ISR ---------------------------------------------------------------------------


def test_a_follower_that_lags_too_long_is_a_candidate_for_removal() -> None:
    p = leader()
    fetch(p, TWO, 100)
    assert p.isr_shrink_candidates(LAG_MS) == ()
    assert p.isr_shrink_candidates(LAG_MS + 1) == (THREE,)


def test_a_follower_at_the_end_of_an_idle_log_never_lags() -> None:
    p = leader()
    fetch(p, TWO, 100)
    fetch(p, THREE, 100)
    assert p.isr_shrink_candidates(100 * LAG_MS) == ()


def test_a_follower_that_reaches_the_end_of_its_previous_fetch_keeps_up() -> None:
    """Under steady load nobody is ever at the very end; to be where the end was is enough."""
    p = leader()
    fetch(p, THREE, 100)
    fetch(p, TWO, 90, now_ms=1_000)
    p.log_end_moved(200)
    fetch(p, THREE, 200, now_ms=1_500)
    fetch(p, TWO, 100, now_ms=2_000)
    assert p.isr_shrink_candidates(1_000 + LAG_MS) == ()
    assert p.isr_shrink_candidates(1_001 + LAG_MS) == (TWO,)


def test_a_pending_removal_is_waited_for_until_metadata_brings_it() -> None:
    """The controller may refuse; then the replica was a member all along.

    Its answer may be faster than a ``min.insync.replicas`` that it already counted with.
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
    assert p.high_watermark == 0, "it was raised before, and 3 goes on holding what is committed"
    p.set_min_insync_replicas(2)
    assert p.high_watermark == 100


# --- growing the ISR -----------------------------------------------------------------------------


def started(p: Partition, who: BrokerId, start: int, *, end: int = 100) -> None:
    """It fetches from ``end`` on, and says that its log starts at ``start``."""
    p.follower_fetched(
        who,
        fetch_offset=end,
        now_ms=0,
        broker_epoch=EPOCH,
        speaker=SPEAKERS[who],
        moment=0,
        log_start_offset=start,
    )


def test_a_follower_may_join_once_it_has_all_that_is_committed() -> None:
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
    """A fetch session of THREE at the leader: requests and answers in turn."""

    def __init__(self, p: Partition, moments: Moments) -> None:
        self.p, self.moments, self.speaker = p, moments, Speaker()

    def request(self, offset: int) -> bool:
        """Whether it was heard."""
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


@pytest.mark.parametrize("what", ["left_the_isr", "broker_registered"])
def test_what_a_follower_says_counts_if_it_was_said_of_the_copy_of_now(what: str) -> None:
    """It may have been lost and made anew, or come back shorter, in the same epochs as before."""
    p, moments, brokers = leader(isr=(1, 2)), Moments(), {THREE: broker(THREE)}
    old, late = Session(p, moments), Session(p, moments)
    assert old.request(100)
    old.answer()
    assert p.isr_expand_wanted(THREE, brokers)
    if what == "left_the_isr":
        after = state(isr=(1, 2), partition_epoch=11)
        p.apply(after, log_end_offset=100, now_ms=0, moment=moments.next())
    else:
        p.broker_registered(THREE, moments.next())
    assert not p.isr_expand_wanted(THREE, brokers), "what is remembered is void"
    assert not old.request(100), "sent before, read now"
    assert not late.request(100)
    assert not p.isr_expand_wanted(THREE, brokers)
    new = Session(p, moments)
    assert not new.request(90), "nothing says that this one is not late, too"
    new.answer()
    assert new.request(90)
    assert (end_of(p, THREE), p.isr_expand_wanted(THREE, brokers)) == (90, False)
    old.answer()
    new.answer()
    assert new.request(100) and p.isr_expand_wanted(THREE, brokers)
    assert not old.request(120), "a loop that was given up"
    assert end_of(p, THREE) == 100


def test_a_follower_may_join_once_it_has_nothing_that_was_deleted() -> None:
    """Whoever was away, or restarted with an older start, was not asked when that was answered."""
    p = leader(isr=(1, 2))
    brokers = {THREE: broker(THREE)}
    started(p, THREE, 6)
    assert not p.isr_expand_wanted(THREE, brokers, log_start_offset=7)
    started(p, THREE, 7)
    assert p.isr_expand_wanted(THREE, brokers, log_start_offset=7)


def test_an_idle_follower_that_goes_on_fetching_need_not_say_again_where_it_is() -> None:
    p, moments, brokers = leader(isr=(1, 2)), Moments(), {THREE: broker(THREE)}
    session = Session(p, moments)
    assert session.request(100)
    session.answer()
    p.broker_registered(THREE, moments.next())
    session.speaker.spoke()
    assert not p.isr_expand_wanted(THREE, brokers), "sent before that, perhaps"
    session.answer()
    assert not p.isr_expand_wanted(THREE, brokers), "nobody is known to have got that answer"
    session.speaker.spoke()
    assert p.isr_expand_wanted(THREE, brokers)
    p.follower_left(THREE, session.speaker)
    assert not p.isr_expand_wanted(THREE, brokers), "now it speaks of other partitions"


def test_a_follower_must_have_reached_the_start_of_the_leaders_epoch() -> None:
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
        "not_the_one_that_fetched",
    ],
)
def test_a_follower_that_cannot_count_does_not_join(
    registration: BrokerRegistration | None,
) -> None:
    p = leader(isr=(1, 2))
    fetch(p, THREE, 100)
    assert not p.isr_expand_wanted(THREE, {} if registration is None else {THREE: registration})


def test_a_pending_member_is_waited_for_before_it_is_committed() -> None:
    """It may be in the ISR already as far as the controller is concerned, and be elected."""
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
def test_what_a_refused_change_comes_to(
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


def test_metadata_that_overtakes_the_answer_settles_the_change() -> None:
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


# --- any order of events -------------------------------------------------------------------------


class PartitionMachine(RuleBasedStateMachine):
    """Random fetches, appends, ISR changes and metadata against what must always hold."""

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

    @rule(who=st.sampled_from([TWO, THREE]), share=st.floats(0, 1))
    def fetch(self, who: BrokerId, share: float) -> None:
        missing = self.p.log_end_offset - self.ends[who]
        self.ends[who] += int(missing * share + 0.5)
        fetch(self.p, who, self.ends[who])

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
    def the_high_watermark_is_held_by_every_member_and_never_goes_back(self) -> None:
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
    def nobody_else_is_waited_for(self) -> None:
        if not self.p.is_under_min_isr and self.p.pending_isr_change is None:
            members = [self.ends[m] for m in self.p.isr if m != ME]
            known = [end_of(self.p, m) for m in self.p.isr if m != ME]
            if UNKNOWN_OFFSET not in known:
                assert self.p.high_watermark >= min([self.p.log_end_offset, *members])


TestAnyOrderOfEvents = PartitionMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
