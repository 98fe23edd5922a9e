"""Gates that hold disk operations, waits with a time limit, and a check for unhandled errors."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

from tests.faults.vfs_fault import FaultVfs

PATIENCE_S = 20.0


async def until(holds: Callable[[], object]) -> None:
    """Run other tasks until ``holds()``, for at most ``PATIENCE_S``."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.001)


async def settle() -> None:
    """Run the tasks that are ready, for tests of tasks that must not end yet."""
    for _ in range(200):
        await asyncio.sleep(0)


class Gate:
    """Holds operations of ``kind`` on paths that match ``path`` until the gate opens.

    A context manager, which always opens the gate at its end.
    """

    def __init__(self, vfs: FaultVfs, kind: str, path: str = "*") -> None:
        self._vfs = vfs
        self._kind = kind
        self._path = path
        self._is_open = threading.Event()
        self._is_reached = threading.Event()

    def __enter__(self) -> Gate:
        self._vfs.on_operation = self._pass
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        self._vfs.on_operation = None

    def open(self) -> None:
        self._is_open.set()

    async def reached(self) -> None:
        """Wait until an operation is held by the gate."""
        await until(self._is_reached.is_set)

    def _pass(self, kind: str, path: str) -> None:
        """Run in the thread of the directory."""
        if kind == self._kind and fnmatch(path, self._path):
            self._is_reached.set()
            self._is_open.wait(PATIENCE_S)


@contextlib.contextmanager
def no_bugs() -> Iterator[None]:
    """Fail if the event loop reports an error, for which a daemon would exit with 70."""
    reported: list[object] = []

    def note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(context.get("exception") or context["message"])

    asyncio.get_running_loop().set_exception_handler(note)
    yield
    assert reported == [], reported
