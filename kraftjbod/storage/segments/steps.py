"""PURE. Long work on a disk in steps, between which other operations of the directory run.

The work is a generator that yields wherever it may pause, with the bytes it read since it last
yielded. Small file operations count as :data:`SEEK_BYTES` or :data:`STAT_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeVar

T = TypeVar("T")

Steps = Generator[int, None, T]

#: About 40 ms of a rotating disk, and less of the interpreter.
STEP_BYTES: Final = 4 * 1024 * 1024
#: A small file operation that may move the head of a rotating disk.
SEEK_BYTES: Final = STEP_BYTES // 8
#: A lookup of an inode; those of one directory are neighbours on the disk.
STAT_BYTES: Final = STEP_BYTES // 64


def take_step(work: Steps[T], step_bytes: int = STEP_BYTES) -> list[T]:
    """Continue ``work`` for about ``step_bytes``. Return a list with its result, which is empty
    while the work is not complete.
    """
    spent_bytes = 0
    while spent_bytes < step_bytes:
        try:
            spent_bytes += next(work)
        except StopIteration as done:
            return [done.value]
    return []


def run_all(work: Steps[T], beat: Callable[[], None] = lambda: None) -> T:
    """Carry out all of ``work`` and return its result. Call ``beat`` about every
    :data:`STEP_BYTES`.
    """
    while not (result := take_step(work)):
        beat()
    return result[0]
