"""Verdicts by errno, and where a new replica goes."""

from __future__ import annotations

import errno

import pytest

from kraftjbod.storage.log_dir_policy import DirCandidate, OpKind, Verdict, choose_dir, judge
from tests.faults.rig import directory_id


@pytest.mark.parametrize(
    ("number", "kind", "verdict"),
    [
        (errno.EIO, OpKind.READ, Verdict.FAILED),
        (errno.EROFS, OpKind.APPEND, Verdict.FAILED),
        (errno.EACCES, OpKind.CREATE, Verdict.FAILED),
        (errno.EPERM, OpKind.RENAME, Verdict.FAILED),
        (errno.ENODEV, OpKind.CHECKPOINT, Verdict.FAILED),
        (None, OpKind.READ, Verdict.FAILED),
        (errno.ENOSPC, OpKind.APPEND, Verdict.FULL),
        (errno.EDQUOT, OpKind.CREATE, Verdict.FULL),
        (errno.EFBIG, OpKind.APPEND, Verdict.FULL),
        (errno.ENOENT, OpKind.READ, Verdict.CALLER_BUG),
        (errno.EBADF, OpKind.APPEND, Verdict.CALLER_BUG),
        (errno.EMFILE, OpKind.READ, Verdict.PROCESS_LIMIT),
        (errno.ENOMEM, OpKind.APPEND, Verdict.PROCESS_LIMIT),
        # A failed fsync is final, and a probe asks one question only.
        (errno.EINVAL, OpKind.FLUSH, Verdict.FAILED),
        (errno.ENOENT, OpKind.PROBE, Verdict.FAILED),
    ],
)
def test_verdicts(number: int | None, kind: OpKind, verdict: Verdict):
    assert judge(number, kind) is verdict


def candidate(number: int, usable: int, promised: int, replicas: int) -> DirCandidate:
    return DirCandidate(
        directory_id=directory_id(number),
        usable_bytes=usable,
        promised_bytes=promised,
        replicas=replicas,
    )


def test_most_room_after_promises_wins():
    candidates = [candidate(1, 100, 90, 1), candidate(2, 50, 10, 9), candidate(3, 30, 0, 0)]
    assert choose_dir(candidates) == directory_id(2)


def test_fewest_replicas_break_a_tie():
    assert choose_dir([candidate(1, 10, 0, 5), candidate(2, 20, 10, 4)]) == directory_id(2)


def test_no_dir_no_choice():
    assert choose_dir([]) is None
