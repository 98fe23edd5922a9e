"""One row per bullet of KIP-858, "Replica management", and of KIP-113, "Handle failure", and per
case that they leave open; the ids say which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.directory_reconcile import (
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
    is_in_isr: bool = True,
    may_lose_records: bool = False,
) -> Wanted:
    return Wanted(
        topic_id=TOPIC,
        directory_id=directory_id,
        is_new=is_new,
        is_in_isr=is_in_isr,
        may_lose_records=may_lose_records,
    )


def copy_in(directory_id: DirectoryId, topic_id: TopicId = TOPIC) -> LocalCopy:
    return LocalCopy(directory_id=directory_id, topic_id=topic_id)


Row = tuple[Wanted | None, LocalCopy | None, LocalCopy | None, LocalDirs, tuple[Action, ...]]

#: Wanted, current copy, future copy, directories, what to do.
ROWS: dict[str, Row] = {
    # --- KIP-858, "Replica management": not assigned ---------------------------------------------
    "kip858-unassigned-exists-assigns-actual": (
        wanted(UNASSIGNED_DIR), copy_in(B), None, ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "kip858-unassigned-exists-while-one-offline-assigns-actual": (
        wanted(UNASSIGNED_DIR), copy_in(B), None, ONE_OFFLINE, (Assign(directory_id=B),),
    ),
    "kip858-unassigned-missing-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "unassigned-new-while-one-offline-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR, is_new=True), None, None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "unassigned-missing-outside-isr-while-one-offline-chooses-and-assigns": (
        wanted(UNASSIGNED_DIR, is_in_isr=False), None, None, ONE_OFFLINE, (CreateChosen(),),
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
    "kip858-migrating-missing-chooses-and-assigns": (
        wanted(MIGRATING_DIR), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    # --- KIP-858: assigned to an online directory ------------------------------------------------
    "kip858-online-dir-missing-creates-there": (
        wanted(A), None, None, ALL_ONLINE, (Create(directory_id=A),),
    ),
    "kip858-online-dir-missing-while-another-offline-creates-there": (
        wanted(A), None, None, ONE_OFFLINE, (Create(directory_id=A),),
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
    "unknown-dir-older-copy-came-back-while-one-offline-waits": (
        wanted(GONE), copy_in(B), None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-both-copies-while-one-offline-waits": (
        wanted(GONE), copy_in(A), copy_in(B), ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown-dir-of-a-new-topic-while-one-offline-chooses-and-assigns": (
        wanted(GONE, is_new=True), None, None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "kip858-unknown-dir-missing-all-online-chooses-and-assigns": (
        wanted(GONE, is_in_isr=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "kip858-lost-missing-all-online-chooses-and-assigns": (
        wanted(LOST_DIR, is_in_isr=False), None, None, ALL_ONLINE, (CreateChosen(),),
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
        wanted(LOST_DIR, is_in_isr=False), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "empty-disk-last-isr-member-stays-without-a-log": (
        wanted(LOST_DIR), None, None, ALL_ONLINE, (WaitOutOfSync(),),
    ),
    "empty-disk-last-isr-member-creates-if-the-operator-allows-loss": (
        wanted(LOST_DIR, may_lose_records=True), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    "unknown-dir-of-a-new-replica-in-isr-creates": (
        wanted(GONE, is_new=True), None, None, ALL_ONLINE, (CreateChosen(),),
    ),
    # --- KIP-113, "Handle failure": the future copy is alone -------------------------------------
    "kip113-future-alone-no-bad-dir-becomes-current": (
        wanted(B), None, copy_in(B), ALL_ONLINE, (AdoptFuture(directory_id=B),),
    ),
    "kip113-future-alone-no-bad-dir-metadata-names-another-becomes-current": (
        wanted(A), None, copy_in(B), ALL_ONLINE, (AdoptFuture(directory_id=B),),
    ),
    "kip113-future-alone-no-bad-dir-metadata-names-the-gone-source-becomes-current": (
        wanted(GONE, is_in_isr=False), None, copy_in(B), ALL_ONLINE,
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
        wanted(B, is_in_isr=False), None, copy_in(B), ONE_OFFLINE,
        (AdoptFuture(directory_id=B),),
    ),
    "future-alone-bad-dir-unassigned-reports-lost": (
        wanted(UNASSIGNED_DIR), None, copy_in(B), ONE_OFFLINE, (Assign(directory_id=LOST_DIR),),
    ),
    # --- other topics, and nobody's copies -------------------------------------------------------
    "older-topic-in-the-wanted-dir-set-aside-then-creates": (
        wanted(A), copy_in(A, OLD_TOPIC), None, ALL_ONLINE,
        (RemoveStray(directory_id=A), Create(directory_id=A)),
    ),
    "older-topic-while-unassigned-set-aside-then-chooses": (
        wanted(UNASSIGNED_DIR), copy_in(A, OLD_TOPIC), None, ALL_ONLINE,
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
        wanted(A), copy_in(A, OLD_TOPIC), copy_in(B, OLD_TOPIC), ALL_ONLINE,
        (RemoveStray(directory_id=A), DropFuture(directory_id=B), Create(directory_id=A)),
    ),
    "older-topics-copy-goes-and-the-new-ones-future-becomes-current": (
        wanted(A), copy_in(A, OLD_TOPIC), copy_in(B), ALL_ONLINE,
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
def test_each_row_of_the_table(row: Row) -> None:
    wants, copy, future, dirs, expected = row
    assert reconcile(wants, copy, future, dirs) == expected


@pytest.mark.parametrize("copies", [(copy_in(GONE), None), (None, copy_in(GONE))])
def test_a_copy_in_a_dir_that_is_not_online_is_a_bug_of_the_caller(
    copies: tuple[LocalCopy | None, LocalCopy | None],
) -> None:
    with pytest.raises(AssertionError):
        reconcile(wanted(A), *copies, ALL_ONLINE)


_DIRECTORIES = st.sampled_from([A, B, GONE, LOST_DIR, UNASSIGNED_DIR, MIGRATING_DIR])
_MAKES_EMPTY = (Create, CreateChosen)


@given(
    _DIRECTORIES, st.booleans(), st.booleans(),
    st.sampled_from([None, copy_in(A), copy_in(A, OLD_TOPIC)]),
    st.sampled_from([None, copy_in(B), copy_in(B, OLD_TOPIC)]),
    st.sampled_from([ALL_ONLINE, ONE_OFFLINE]),
)  # fmt: skip
def test_the_rules_hold_in_every_case(
    directory_id: DirectoryId,
    is_new: bool,
    is_in_isr: bool,
    copy: LocalCopy | None,
    future: LocalCopy | None,
    dirs: LocalDirs,
) -> None:
    wants = wanted(directory_id, is_new=is_new, is_in_isr=is_in_isr)
    actions = reconcile(wants, copy, future, dirs)
    about_copy = [a for a in actions if not isinstance(a, RemoveStray | DropFuture | ResumeMove)]
    assert len(about_copy) == 1, actions
    has_copy = copy is not None and copy.topic_id == TOPIC
    if isinstance(about_copy[0], _MAKES_EMPTY):
        assert not has_copy and (future is None or future.topic_id != TOPIC)
        is_named_unknown = directory_id in (GONE, LOST_DIR)
        assert is_new or not is_named_unknown or not (dirs.any_offline or is_in_isr)
    resumed = [a for a in actions if isinstance(a, ResumeMove)]
    assert not resumed or (has_copy and future is not None)
    if Assign(directory_id=B) in actions:
        raise AssertionError("a future copy is assigned by its move or its adoption only")
