"""``reconcile``: one row per case of KIP-858, "Replica management", and of KIP-113, "Handle
failure", and per case that both leave open. The ids name the cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.replicas.directory_reconcile import (
    Action,
    AdoptFuture,
    Assign,
    Create,
    CreateChosen,
    DropFuture,
    KeepAsIs,
    LocalCopy,
    LocalDirs,
    RemoveStray,
    ResumeMove,
    WaitOffline,
    WaitOutOfSync,
    Wanted,
    reconcile,
)
from kraftjbod.core.ids import LOST_DIR, MIGRATING_DIR, UNASSIGNED_DIR, DirectoryId, TopicId

A = DirectoryId(b"A" * 16)
B = DirectoryId(b"B" * 16)
C = DirectoryId(b"C" * 16)
GONE = DirectoryId(b"X" * 16)
TOPIC = TopicId(b"t" * 16)
OLD_TOPIC = TopicId(b"o" * 16)

ALL_ONLINE = LocalDirs(online={A, B, C}, any_offline=False)
ONE_OFFLINE = LocalDirs(online={A, B, C}, any_offline=True)


def wanted(
    directory_id: DirectoryId,
    *,
    is_new: bool = False,
    is_counted: bool = True,
    is_last: bool = False,
    was_made: bool = True,
    may_lose_records: bool = False,
    moved_from: DirectoryId | None = None,
) -> Wanted:
    return Wanted(
        topic_id=TOPIC,
        directory_id=directory_id,
        is_new=is_new,
        is_counted=is_counted,
        is_last=is_last,
        was_made=was_made,
        may_lose_records=may_lose_records,
        moved_from=moved_from,
    )


def copy_in(directory_id: DirectoryId, topic_id: TopicId = TOPIC) -> LocalCopy:
    return LocalCopy(directory_id=directory_id, topic_id=topic_id)


Row = tuple[Wanted | None, LocalCopy | None, LocalCopy | None, LocalDirs, tuple[Action, ...]]

#: Desired replica, current copy, future copy, directories, expected actions.
ROWS: dict[str, Row] = {
    # --- KIP-858, "Replica management": not assigned ---------------------------------------------
    "kip858-unassigned-exists-assigns-actual": (
        wanted(UNASSIGNED_DIR), copy_in(B), None, ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "kip858-unassigned-exists-while-one-offline-assigns-actual": (
        wanted(UNASSIGNED_DIR), copy_in(B), None, ONE_OFFLINE, (Assign(directory_id=B),),
    ),
    "kip858-unassigned-missing-outside-isr-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR, is_counted=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "unassigned-missing-in-isr-reports-lost": (
        wanted(UNASSIGNED_DIR, was_made=False), None, None, ALL_ONLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "unassigned-missing-last-in-sync-and-never-made-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR, is_last=True, was_made=False), None, None, ALL_ONLINE,
        (CreateChosen(),),
    ),
    "unassigned-missing-last-in-sync-and-made-once-reports-lost": (
        wanted(UNASSIGNED_DIR, is_last=True), None, None, ALL_ONLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "unassigned-missing-last-in-sync-while-one-offline-reports-lost-though-nothing-is-known": (
        wanted(UNASSIGNED_DIR, is_last=True, was_made=False), None, None, ONE_OFFLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "unassigned-new-while-one-offline-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR, is_new=True), None, None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "unassigned-missing-outside-isr-while-one-offline-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR, is_counted=False), None, None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "unassigned-missing-in-isr-while-one-offline-reports-lost": (
        wanted(UNASSIGNED_DIR), None, None, ONE_OFFLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "unassigned-both-copies-assigns-actual-and-copies-on": (
        wanted(UNASSIGNED_DIR), copy_in(A), copy_in(B), ALL_ONLINE,
        (Assign(directory_id=A), ResumeMove(is_accepted=False)),
    ),
    "kip858-migrating-exists-assigns-actual": (
        wanted(MIGRATING_DIR), copy_in(A), None, ALL_ONLINE, (Assign(directory_id=A),),
    ),
    "kip858-migrating-missing-outside-isr-chooses-and-assigns": (
        wanted(MIGRATING_DIR, is_counted=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    # --- KIP-858: assigned to an online directory ------------------------------------------------
    "kip858-online-dir-new-creates-there": (
        wanted(A, is_new=True), None, None, ALL_ONLINE, (Create(directory_id=A),),
    ),
    "kip858-online-dir-missing-outside-isr-creates-there": (
        wanted(A, is_counted=False), None, None, ALL_ONLINE, (Create(directory_id=A),),
    ),
    "kip858-online-dir-missing-outside-isr-while-another-offline-creates-there": (
        wanted(A, is_counted=False), None, None, ONE_OFFLINE, (Create(directory_id=A),),
    ),
    "online-dir-vanished-in-isr-reports-lost": (
        wanted(A), None, None, ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "online-dir-vanished-or-never-made-in-isr-with-others-reports-lost": (
        wanted(A, was_made=False), None, None, ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "online-dir-vanished-last-in-sync-reports-lost": (
        wanted(A, is_last=True), None, None, ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "online-dir-vanished-last-in-sync-reports-lost-even-if-loss-is-allowed": (
        wanted(A, is_last=True, may_lose_records=True), None, None, ALL_ONLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "online-dir-never-made-last-in-sync-creates-there": (
        wanted(A, is_last=True, was_made=False), None, None, ALL_ONLINE,
        (Create(directory_id=A),),
    ),
    "online-dir-never-made-last-in-sync-while-another-offline-creates-there": (
        wanted(A, is_last=True, was_made=False), None, None, ONE_OFFLINE,
        (Create(directory_id=A),),
    ),
    "kip858-online-dir-exists-there-keeps": (
        wanted(A), copy_in(A), None, ALL_ONLINE, (KeepAsIs(),),
    ),
    "kip858-online-dir-future-elsewhere-copies-on": (
        wanted(A), copy_in(A), copy_in(B), ALL_ONLINE,
        (KeepAsIs(), ResumeMove(is_accepted=False)),
    ),
    "kip858-online-dir-future-elsewhere-while-another-offline-copies-on": (
        wanted(A), copy_in(A), copy_in(B), ONE_OFFLINE,
        (KeepAsIs(), ResumeMove(is_accepted=False)),
    ),
    "kip858-online-dir-is-the-futures-replaces-after-catching-up": (
        wanted(B), copy_in(A), copy_in(B), ALL_ONLINE,
        (KeepAsIs(), ResumeMove(is_accepted=True)),
    ),
    "kip858-online-dir-is-the-futures-while-another-offline-replaces-after-catching-up": (
        wanted(B), copy_in(A), copy_in(B), ONE_OFFLINE,
        (KeepAsIs(), ResumeMove(is_accepted=True)),
    ),
    "kip858-online-dir-exists-in-another-moved-by-hand-assigns-actual": (
        wanted(A), copy_in(B), None, ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "kip858-online-dir-exists-in-another-with-future-in-a-third-assigns-and-copies-on": (
        wanted(C), copy_in(A), copy_in(B), ALL_ONLINE,
        (Assign(directory_id=A), ResumeMove(is_accepted=False)),
    ),
    # --- KIP-858: assigned to an unknown directory, or lost --------------------------------------
    "kip858-unknown-dir-missing-while-one-offline-waits": (
        wanted(GONE), None, None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "kip858-lost-missing-while-one-offline-waits": (
        wanted(LOST_DIR), None, None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "lost-and-recreated-before-one-went-offline-assigns-actual": (
        wanted(LOST_DIR, is_counted=False), copy_in(B), None, ONE_OFFLINE,
        (Assign(directory_id=B),),
    ),
    "lost-and-still-counted-older-copy-while-one-offline-waits": (
        wanted(LOST_DIR), copy_in(B), None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-older-copy-came-back-while-one-offline-waits": (
        wanted(GONE), copy_in(B), None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-both-copies-while-one-offline-waits": (
        wanted(GONE), copy_in(A), copy_in(B), ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-source-of-an-agreed-move-serves-while-the-target-is-offline": (
        wanted(GONE, moved_from=A), copy_in(A), None, ONE_OFFLINE, (Assign(directory_id=A),),
    ),
    "unknown-dir-source-of-an-agreed-move-serves-when-the-target-was-taken-out": (
        wanted(GONE, moved_from=A), copy_in(A), None, ALL_ONLINE, (Assign(directory_id=A),),
    ),
    "unknown-dir-agreed-move-from-elsewhere-waits": (
        wanted(GONE, moved_from=A), copy_in(B), None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-agreed-move-without-its-source-waits": (
        wanted(GONE, moved_from=A), None, None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-of-a-new-topic-while-one-offline-chooses-and-assigns": (
        wanted(GONE, is_new=True), None, None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "kip858-unknown-dir-missing-all-online-chooses-and-assigns": (
        wanted(GONE, is_counted=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "kip858-lost-missing-all-online-chooses-and-assigns": (
        wanted(LOST_DIR, is_counted=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "kip858-unknown-dir-exists-all-online-assigns-actual": (
        wanted(GONE), copy_in(B), None, ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "kip858-lost-exists-all-online-assigns-actual": (
        wanted(LOST_DIR), copy_in(B), None, ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "unknown-dir-both-copies-all-online-assigns-actual-and-copies-on": (
        wanted(GONE), copy_in(A), copy_in(B), ALL_ONLINE,
        (Assign(directory_id=A), ResumeMove(is_accepted=False)),
    ),
    # --- an empty log is not in sync -------------------------------------------------------------
    "empty-disk-in-isr-reports-lost-before-it-creates": (
        wanted(GONE), None, None, ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "empty-disk-reported-lost-and-out-of-isr-creates": (
        wanted(LOST_DIR, is_counted=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "empty-disk-last-in-sync-reports-lost-though-nothing-says-that-it-was-made": (
        wanted(GONE, is_last=True, was_made=False), None, None, ALL_ONLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "empty-disk-last-in-sync-reports-lost-even-if-loss-is-allowed": (
        wanted(GONE, is_last=True, may_lose_records=True), None, None, ALL_ONLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "lost-and-still-in-isr-stays-without-a-log": (
        wanted(LOST_DIR, may_lose_records=True), None, None, ALL_ONLINE, (WaitOutOfSync(),),
    ),
    "lost-last-in-sync-stays-without-a-log": (
        wanted(LOST_DIR, is_last=True), None, None, ALL_ONLINE, (WaitOutOfSync(),),
    ),
    "lost-last-in-sync-stays-without-a-log-though-nothing-says-that-it-was-made": (
        wanted(LOST_DIR, is_last=True, was_made=False), None, None, ALL_ONLINE,
        (WaitOutOfSync(),),
    ),
    "lost-last-in-sync-creates-if-the-operator-allows-loss": (
        wanted(LOST_DIR, is_last=True, may_lose_records=True), None, None, ALL_ONLINE,
        (CreateChosen(),),
    ),
    "unknown-dir-of-a-new-replica-in-isr-creates": (
        wanted(GONE, is_new=True), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    # --- KIP-113, "Handle failure": the future copy is alone -------------------------------------
    "kip113-future-alone-no-bad-dir-outside-isr-becomes-current": (
        wanted(B, is_counted=False), None, copy_in(B), ALL_ONLINE, (AdoptFuture(directory_id=B),),
    ),
    "kip113-future-alone-no-bad-dir-outside-isr-metadata-names-another-becomes-current": (
        wanted(A, is_counted=False), None, copy_in(B), ALL_ONLINE, (AdoptFuture(directory_id=B),),
    ),
    "kip113-future-alone-no-bad-dir-lost-and-out-of-isr-becomes-current": (
        wanted(LOST_DIR, is_counted=False), None, copy_in(B), ALL_ONLINE,
        (AdoptFuture(directory_id=B),),
    ),
    "future-alone-no-bad-dir-in-isr-reports-lost": (
        wanted(GONE), None, copy_in(B), ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "future-alone-no-bad-dir-accepted-in-isr-reports-lost": (
        wanted(B), None, copy_in(B), ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "future-alone-no-bad-dir-unassigned-in-isr-reports-lost": (
        wanted(UNASSIGNED_DIR), None, copy_in(B), ALL_ONLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "future-alone-no-bad-dir-last-in-sync-reports-lost-even-if-loss-is-allowed": (
        wanted(GONE, is_last=True, may_lose_records=True), None, copy_in(B), ALL_ONLINE,
        (Assign(directory_id=LOST_DIR),),
    ),
    "future-alone-no-bad-dir-lost-and-last-in-sync-waits-and-leaves-it-alone": (
        wanted(LOST_DIR, is_last=True), None, copy_in(B), ALL_ONLINE, (WaitOutOfSync(),),
    ),
    "future-alone-no-bad-dir-lost-and-last-in-sync-is-all-there-is-if-the-operator-allows-loss": (
        wanted(LOST_DIR, is_last=True, may_lose_records=True), None, copy_in(B), ALL_ONLINE,
        (AdoptFuture(directory_id=B),),
    ),
    "kip113-future-alone-no-bad-dir-metadata-names-the-gone-source-becomes-current": (
        wanted(GONE, is_counted=False), None, copy_in(B), ALL_ONLINE,
        (AdoptFuture(directory_id=B),),
    ),
    "kip113-future-alone-bad-dir-waits-and-leaves-it-alone": (
        wanted(GONE), None, copy_in(B), ONE_OFFLINE, (WaitOffline(),),
    ),
    "kip113-future-alone-bad-dir-online-dir-named-waits-and-leaves-it-alone": (
        wanted(A), None, copy_in(B), ONE_OFFLINE, (WaitOffline(),),
    ),
    "kip113-future-alone-bad-dir-lost-waits-and-leaves-it-alone": (
        wanted(LOST_DIR), None, copy_in(B), ONE_OFFLINE, (WaitOffline(),),
    ),
    "future-alone-bad-dir-accepted-in-isr-reports-lost": (
        wanted(B), None, copy_in(B), ONE_OFFLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "future-alone-bad-dir-accepted-outside-isr-becomes-current": (
        wanted(B, is_counted=False), None, copy_in(B), ONE_OFFLINE,
        (AdoptFuture(directory_id=B),),
    ),
    "future-alone-bad-dir-unassigned-in-isr-reports-lost": (
        wanted(UNASSIGNED_DIR), None, copy_in(B), ONE_OFFLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "future-alone-bad-dir-unassigned-outside-isr-becomes-current": (
        wanted(UNASSIGNED_DIR, is_counted=False), None, copy_in(B), ONE_OFFLINE,
        (AdoptFuture(directory_id=B),),
    ),
    # --- other topics, and copies without a replica ----------------------------------------------
    "older-topic-in-the-wanted-dir-set-aside-then-creates": (
        wanted(A, is_counted=False), copy_in(A, OLD_TOPIC), None, ALL_ONLINE,
        (RemoveStray(directory_id=A), Create(directory_id=A)),
    ),
    "older-topic-while-unassigned-set-aside-then-chooses": (
        wanted(UNASSIGNED_DIR, is_counted=False), copy_in(A, OLD_TOPIC), None, ALL_ONLINE,
        (RemoveStray(directory_id=A), CreateChosen()),
    ),
    "older-topic-and-the-real-one-on-a-dead-disk-set-aside-and-waits": (
        wanted(GONE), copy_in(A, OLD_TOPIC), None, ONE_OFFLINE,
        (RemoveStray(directory_id=A), WaitOffline()),
    ),
    "older-topics-future-goes-and-the-copy-stays": (
        wanted(A), copy_in(A), copy_in(B, OLD_TOPIC), ALL_ONLINE,
        (DropFuture(directory_id=B), KeepAsIs()),
    ),
    "older-topics-copy-goes-and-its-future-too": (
        wanted(A, is_counted=False), copy_in(A, OLD_TOPIC), copy_in(B, OLD_TOPIC), ALL_ONLINE,
        (RemoveStray(directory_id=A), DropFuture(directory_id=B), Create(directory_id=A)),
    ),
    "older-topic-in-the-place-of-an-in-sync-copy-set-aside-then-reports-lost": (
        wanted(A), copy_in(A, OLD_TOPIC), None, ALL_ONLINE,
        (RemoveStray(directory_id=A), Assign(directory_id=LOST_DIR)),
    ),
    "older-topics-copy-goes-and-the-new-ones-future-becomes-current": (
        wanted(A, is_counted=False), copy_in(A, OLD_TOPIC), copy_in(B), ALL_ONLINE,
        (RemoveStray(directory_id=A), AdoptFuture(directory_id=B)),
    ),
    "no-replica-here-and-a-copy-stray": (
        None, copy_in(A), None, ALL_ONLINE, (RemoveStray(directory_id=A),),
    ),
    "no-replica-here-and-both-copies-both-go": (
        None, copy_in(A), copy_in(B), ALL_ONLINE,
        (RemoveStray(directory_id=A), DropFuture(directory_id=B)),
    ),
    "no-replica-here-and-no-copy-nothing": (None, None, None, ALL_ONLINE, ()),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_reconcile_returns_the_actions_of_the_table(row: Row) -> None:
    wants, copy, future, dirs, expected = row
    assert reconcile(wants, copy, future, dirs) == expected


@pytest.mark.parametrize("copies", [(copy_in(GONE), None), (None, copy_in(GONE))])
def test_reconcile_with_a_copy_in_an_offline_directory_is_an_error(
    copies: tuple[LocalCopy | None, LocalCopy | None],
) -> None:
    with pytest.raises(AssertionError):
        reconcile(wanted(A), *copies, ALL_ONLINE)


_DIRECTORIES = st.sampled_from([A, B, GONE, LOST_DIR, UNASSIGNED_DIR, MIGRATING_DIR])


@given(
    st.builds(
        wanted, _DIRECTORIES, is_new=st.booleans(), is_counted=st.booleans(),
        is_last=st.booleans(), was_made=st.booleans(), may_lose_records=st.booleans(),
        moved_from=st.sampled_from([None, A, B]),
    ),
    st.sampled_from([None, copy_in(A), copy_in(A, OLD_TOPIC)]),
    st.sampled_from([None, copy_in(B), copy_in(B, OLD_TOPIC)]),
    st.sampled_from([ALL_ONLINE, ONE_OFFLINE]),
)  # fmt: skip
def test_reconcile_keeps_its_invariants_for_random_inputs(
    wants: Wanted, copy: LocalCopy | None, future: LocalCopy | None, dirs: LocalDirs
) -> None:
    actions = reconcile(wants, copy, future, dirs)
    about_copy = [a for a in actions if not isinstance(a, RemoveStray | DropFuture | ResumeMove)]
    assert len(about_copy) == 1, actions
    has_copy = copy is not None and copy.topic_id == TOPIC
    has_future = future is not None and future.topic_id == TOPIC
    made = about_copy[0]
    if isinstance(made, Create | CreateChosen):
        assert not has_copy and not has_future
    if isinstance(made, Create | CreateChosen | AdoptFuture) and wants.is_counted:
        # A log that may lack acknowledged records and could be elected.
        is_abandoned = wants.directory_id == LOST_DIR and wants.is_last and wants.may_lose_records
        held_nothing = wants.is_new or (wants.is_last and not wants.was_made)
        assert is_abandoned or (held_nothing and not isinstance(made, AdoptFuture))
    assert not (has_future and any(isinstance(a, DropFuture) for a in actions))
    resumed = [a for a in actions if isinstance(a, ResumeMove)]
    assert not resumed or (has_copy and future is not None)
    if Assign(directory_id=B) in actions:
        raise AssertionError("a future copy is assigned by its move or its adoption only")
