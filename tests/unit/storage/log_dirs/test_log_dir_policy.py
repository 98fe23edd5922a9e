"""Policy of log directories: verdict by errno, allowed operations, and choice for new replicas."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from kraftjbod.core.errors import KafkaStorageError, LogFlushError, LogIndexError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.log_dir_policy import (
    DirCandidate,
    FailsAs,
    OpKind,
    Verdict,
    choose_dir,
    error_class,
    is_allowed,
    judge,
    kind_of_failure,
)
from tests.bench.balance.placement import by_bytes, by_count, fill_until_one_is_full
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
        (errno.EFBIG, OpKind.APPEND, Verdict.PROCESS_LIMIT),
        (errno.ENOSPC, OpKind.PROBE, Verdict.FULL),
        (errno.ENOSPC, OpKind.FLUSH, Verdict.FAILED),
        (errno.ENOENT, OpKind.READ, Verdict.FAILED),
        (errno.ENOENT, OpKind.RENAME, Verdict.FAILED),
        (errno.ENOENT, OpKind.RETENTION, Verdict.FAILED),
        (errno.ENOENT, OpKind.TRUNCATE, Verdict.FAILED),
        (errno.ENOENT, OpKind.UNDO, Verdict.FAILED),
        (errno.ENOENT, OpKind.DELETE, Verdict.CALLER_BUG),
        (errno.ENOENT, OpKind.LOAD, Verdict.CALLER_BUG),
        (errno.ENOENT, OpKind.APPEND, Verdict.FAILED),
        (errno.ENOENT, OpKind.INDEX, Verdict.FAILED),
        (errno.ENOENT, OpKind.CHECKPOINT, Verdict.FAILED),
        (errno.ENOENT, OpKind.CREATE, Verdict.FAILED),
        (errno.EBADF, OpKind.APPEND, Verdict.CALLER_BUG),
        (errno.EMFILE, OpKind.READ, Verdict.PROCESS_LIMIT),
        (errno.EMFILE, OpKind.FLUSH, Verdict.PROCESS_LIMIT),
        (errno.ENFILE, OpKind.FLUSH, Verdict.PROCESS_LIMIT),
        (errno.EMFILE, OpKind.PROBE, Verdict.PROCESS_LIMIT),
        (errno.ENFILE, OpKind.PROBE, Verdict.PROCESS_LIMIT),
        (errno.ENOMEM, OpKind.APPEND, Verdict.PROCESS_LIMIT),
        # A failed fsync is final, and a probe tests the whole directory.
        (errno.EINVAL, OpKind.FLUSH, Verdict.FAILED),
        (errno.ENOENT, OpKind.PROBE, Verdict.FAILED),
    ],
)
def test_judge_returns_the_verdict_for_errno_and_operation(
    number: int | None, kind: OpKind, verdict: Verdict
) -> None:
    assert judge(number, kind) is verdict


def allowed_in(state: LogDirState) -> set[OpKind]:
    return {kind for kind in OpKind if is_allowed(state, kind)}


def test_is_allowed_lists_the_operations_of_each_state() -> None:
    everything = set(OpKind)
    assert allowed_in(LogDirState.ONLINE) == everything
    assert allowed_in(LogDirState.SATURATED) == everything - {OpKind.APPEND, OpKind.CREATE}
    assert allowed_in(LogDirState.STALLED) == {
        OpKind.START,
        OpKind.LOAD,
        OpKind.CLOSE,
        OpKind.PROBE,
        OpKind.UNDO,
    }
    assert allowed_in(LogDirState.OFFLINE) == set()


def candidate(
    number: int, usable: int, promised: int, replicas: int, *, is_cordoned: bool = False
) -> DirCandidate:
    return DirCandidate(
        directory_id=directory_id(number),
        usable_bytes=usable,
        promised_bytes=promised,
        replicas=replicas,
        is_cordoned=is_cordoned,
    )


def test_choose_dir_prefers_the_most_space_without_promised_bytes() -> None:
    candidates = [candidate(1, 100, 90, 1), candidate(2, 50, 10, 9), candidate(3, 30, 0, 0)]
    assert choose_dir(candidates) == directory_id(2)


def test_choose_dir_breaks_ties_by_fewest_replicas() -> None:
    assert choose_dir([candidate(1, 10, 0, 5), candidate(2, 20, 10, 4)]) == directory_id(2)


def test_choose_dir_skips_cordoned_directories() -> None:
    """KIP-1066: "only a log directory not currently cordoned will be selected"."""
    roomy = candidate(1, 1000, 0, 0, is_cordoned=True)
    assert choose_dir([roomy, candidate(2, 1, 0, 9)]) == directory_id(2)
    assert choose_dir([roomy, candidate(2, 1, 0, 9, is_cordoned=True)]) is None


def test_choose_dir_skips_impaired_directories() -> None:
    full = replace(candidate(1, 1000, 0, 0), is_impaired=True)
    assert choose_dir([full, candidate(2, 1, 0, 9)]) == directory_id(2)
    assert choose_dir([full, candidate(2, 1, 0, 9, is_cordoned=True)]) is None


def test_choose_dir_fills_disks_of_several_sizes_evenly() -> None:
    """Compared with Kafka's rule over thousands of partitions; the benchmark has the figures."""
    ours = fill_until_one_is_full(by_bytes, seed=1)
    theirs = fill_until_one_is_full(by_count, seed=1)
    assert ours.partitions > 4000
    assert ours.used > 0.95 > 0.25 > theirs.used
    assert ours.spread < 0.1 < 0.9 < theirs.spread


def test_choose_dir_without_candidates_returns_none() -> None:
    assert choose_dir([]) is None


def test_error_class_is_specific_for_each_operation_except_start_and_probe() -> None:
    classes = {kind: error_class(kind) for kind in OpKind}
    assert all(issubclass(found, KafkaStorageError) for found in classes.values())
    # Operations on the whole directory use the general class.
    general = {kind for kind, found in classes.items() if found is KafkaStorageError}
    assert general == {OpKind.START, OpKind.PROBE}
    assert classes[OpKind.FLUSH] is LogFlushError
    assert classes[OpKind.INDEX] is LogIndexError


def test_kind_of_failure_is_the_innermost_context() -> None:
    with pytest.raises(OSError) as caught, FailsAs(OpKind.FLUSH), FailsAs(OpKind.INDEX):
        raise OSError(errno.EIO, "on demand")
    assert kind_of_failure(caught.value, OpKind.APPEND) is OpKind.INDEX
    assert kind_of_failure(OSError(errno.EIO, "elsewhere"), OpKind.APPEND) is OpKind.APPEND
