"""Log directories of a test that become full, stall, and recover."""

from __future__ import annotations

import errno

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from tests.unit.broker.gates import until


def _no_space() -> None:
    raise OSError(errno.ENOSPC, "no free space")


async def fill(log_dir: LogDir) -> None:
    """Let an operation find no free space."""
    try:
        await log_dir.run_operation(OpKind.APPEND, _no_space)
    except LogDirImpairedError:
        assert log_dir.state is LogDirState.SATURATED
        return
    raise AssertionError("an operation succeeded without free space")


async def heal(log_dir: LogDir) -> None:
    """Let the checks find free space again."""
    while log_dir.state is LogDirState.SATURATED:
        log_dir.check_disk()
        await log_dir.run_operation(OpKind.READ, lambda: None)


def stall(log_dir: LogDir) -> None:
    log_dir.suspect("the test reports an operation that does not end")


async def answer(log_dir: LogDir) -> None:
    log_dir.absolve()
    await until(lambda: log_dir.state is not LogDirState.STALLED)
