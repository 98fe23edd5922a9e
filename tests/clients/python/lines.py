"""Helpers of the programs in Python: JSON lines, bursts, and the end of standard input."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

#: Records in flight at once. The program waits for all of them before the next burst.
BURST: Final = 20
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_MS: Final = 500
SETTLING_S: Final = 20
#: One of this many transactions is aborted.
ABORTED: Final = 3

_telling: Final = threading.Lock()


def tell(name: str, value: Any = None) -> None:
    """Print one JSON line. Thread-safe."""
    with _telling:
        print(json.dumps({name: value}), flush=True)


def bursts(first: int, count: int) -> Iterator[range]:
    """Yield the numbers to send as ranges of at most ``BURST``."""
    for start in range(first, first + count, BURST):
        yield range(start, min(start + BURST, first + count))


def input_ended() -> threading.Event:
    """Return an event that is set at the end of standard input, which asks the program to stop."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def settled(ask: Callable[[], Any], wanted: Any) -> Any:
    """Poll ``ask`` until it returns ``wanted``; after 20 s return its last result.

    A change is complete when it is answered, but other brokers apply it a moment later.
    """
    deadline = time.monotonic() + SETTLING_S
    while (found := ask()) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def owns(partitions: Iterable[int]) -> None:
    tell("owns", sorted(partitions))
