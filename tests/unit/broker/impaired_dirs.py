"""How a log directory of a test gets full, stalls, and is all right again."""

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
    """Some operation finds no free space."""
    try:
        await log_dir.run(OpKind.APPEND, _no_space)
    except LogDirImpairedError:
        assert log_dir.state is LogDirState.SATURATED
        return
    raise AssertionError("an operation that found no free space went through")


async def heal(log_dir: LogDir) -> None:
    """The checks find that there is free space again."""
    while log_dir.state is LogDirState.SATURATED:
        log_dir.check_disk()
        await log_dir.run(OpKind.READ, lambda: None)


def stall(log_dir: LogDir) -> None:
    log_dir.suspect("an operation does not end, says the test")


async def answer(log_dir: LogDir) -> None:
    log_dir.absolve()
    await until(lambda: log_dir.state is not LogDirState.STALLED)
