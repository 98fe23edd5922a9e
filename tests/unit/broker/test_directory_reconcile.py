"""One row per bullet of KIP-858, "Replica management", and per case that it leaves open."""

from __future__ import annotations

import pytest

from kraftjbod.broker.directory_reconcile import (
    Action,
    Assign,
    Create,
    CreateChosen,
    KeepAsIs,
    LocalCopy,
    LocalDirs,
    RemoveStray,
    WaitOffline,
    Wanted,
    reconcile,
)
from kraftjbod.core.ids import LOST_DIR, MIGRATING_DIR, UNASSIGNED_DIR, DirectoryId, TopicId

A = DirectoryId(b"A" * 16)
B = DirectoryId(b"B" * 16)
GONE = DirectoryId(b"X" * 16)
TOPIC = TopicId(b"t" * 16)
OLD_TOPIC = TopicId(b"o" * 16)

ALL_ONLINE = LocalDirs(online={A, B}, any_offline=False)
ONE_OFFLINE = LocalDirs(online={A, B}, any_offline=True)


def wanted(directory_id: DirectoryId, *, is_new: bool = False, is_in_isr: bool = True) -> Wanted:
    return Wanted(topic_id=TOPIC, directory_id=directory_id, is_new=is_new, is_in_isr=is_in_isr)


def copy_in(directory_id: DirectoryId, topic_id: TopicId = TOPIC) -> LocalCopy:
    return LocalCopy(directory_id=directory_id, topic_id=topic_id)


ROWS: dict[str, tuple[Wanted | None, LocalCopy | None, LocalDirs, tuple[Action, ...]]] = {
    "unassigned_and_exists__assign_the_actual_dir": (
        wanted(UNASSIGNED_DIR), copy_in(B), ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "unassigned_and_exists_while_a_dir_is_offline__assign_the_actual_dir": (
        wanted(UNASSIGNED_DIR), copy_in(B), ONE_OFFLINE, (Assign(directory_id=B),),
    ),
    "unassigned_and_missing__choose_and_assign": (
        wanted(UNASSIGNED_DIR), None, ALL_ONLINE, (CreateChosen(),),
    ),
    "unassigned_new_topic_while_a_dir_is_offline__choose_and_assign": (
        wanted(UNASSIGNED_DIR, is_new=True), None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "unassigned_and_missing_outside_the_isr_while_a_dir_is_offline__choose_and_assign": (
        wanted(UNASSIGNED_DIR, is_in_isr=False), None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "unassigned_and_missing_in_the_isr_while_a_dir_is_offline__report_it_lost": (
        wanted(UNASSIGNED_DIR), None, ONE_OFFLINE, (Assign(directory_id=LOST_DIR),),
    ),
    "migrating_and_exists__assign_the_actual_dir": (
        wanted(MIGRATING_DIR), copy_in(A), ALL_ONLINE, (Assign(directory_id=A),),
    ),
    "migrating_and_missing__choose_and_assign": (
        wanted(MIGRATING_DIR), None, ALL_ONLINE, (CreateChosen(),),
    ),
    "online_dir_and_missing__create_there": (
        wanted(A), None, ALL_ONLINE, (Create(directory_id=A),),
    ),
    "online_dir_and_missing_while_another_is_offline__create_there": (
        wanted(A), None, ONE_OFFLINE, (Create(directory_id=A),),
    ),
    "online_dir_and_exists_there__nothing": (
        wanted(A), copy_in(A), ALL_ONLINE, (KeepAsIs(),),
    ),
    "online_dir_and_exists_in_another__assign_the_actual_dir": (
        wanted(A), copy_in(B), ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "unknown_dir_and_missing_while_a_dir_is_offline__no_action": (
        wanted(GONE), None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "lost_and_missing_while_a_dir_is_offline__no_action": (
        wanted(LOST_DIR), None, ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown_dir_and_an_older_copy_came_back_while_a_dir_is_offline__no_action": (
        wanted(GONE), copy_in(B), ONE_OFFLINE, (WaitOffline(),),
    ),
    "unknown_dir_of_a_new_topic_while_a_dir_is_offline__choose_and_assign": (
        wanted(GONE, is_new=True), None, ONE_OFFLINE, (CreateChosen(),),
    ),
    "unknown_dir_and_missing_with_all_online__choose_and_assign": (
        wanted(GONE), None, ALL_ONLINE, (CreateChosen(),),
    ),
    "lost_and_missing_with_all_online__choose_and_assign": (
        wanted(LOST_DIR), None, ALL_ONLINE, (CreateChosen(),),
    ),
    "unknown_dir_and_exists_with_all_online__assign_the_actual_dir": (
        wanted(GONE), copy_in(B), ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "lost_and_exists_with_all_online__assign_the_actual_dir": (
        wanted(LOST_DIR), copy_in(B), ALL_ONLINE, (Assign(directory_id=B),),
    ),
    "copy_of_a_deleted_topic_in_the_wanted_dir__set_aside_then_create": (
        wanted(A), copy_in(A, OLD_TOPIC), ALL_ONLINE,
        (RemoveStray(directory_id=A), Create(directory_id=A)),
    ),
    "copy_of_a_deleted_topic_while_unassigned__set_aside_then_choose": (
        wanted(UNASSIGNED_DIR), copy_in(A, OLD_TOPIC), ALL_ONLINE,
        (RemoveStray(directory_id=A), CreateChosen()),
    ),
    "copy_of_a_deleted_topic_and_the_real_one_on_a_dead_disk__set_aside_and_wait": (
        wanted(GONE), copy_in(A, OLD_TOPIC), ONE_OFFLINE,
        (RemoveStray(directory_id=A), WaitOffline()),
    ),
    "no_replica_here_and_a_copy__stray": (
        None, copy_in(A), ALL_ONLINE, (RemoveStray(directory_id=A),),
    ),
    "no_replica_here_and_no_copy__nothing": (None, None, ALL_ONLINE, ()),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_each_row_of_the_table(
    row: tuple[Wanted | None, LocalCopy | None, LocalDirs, tuple[Action, ...]],
) -> None:
    wants, copy, dirs, expected = row
    assert reconcile(wants, copy, dirs) == expected


def test_a_copy_in_a_dir_that_is_not_online_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        reconcile(wanted(A), copy_in(GONE), ALL_ONLINE)
