"""What the programs in Python have in common: JSON lines, and a standard input that ends."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

#: Records that are under way at once; then all of them are waited for.
BURST: Final = 20
SESSION_TIMEOUT_MS: Final = 10_000
HEARTBEAT_MS: Final = 500
SETTLING_S: Final = 20
#: Every so many transactions one is aborted.
ABORTED: Final = 3

_telling: Final = threading.Lock()


def tell(name: str, value: Any = None) -> None:
    """Whole lines, also from several threads."""
    with _telling:
        print(json.dumps({name: value}), flush=True)


def bursts(first: int, count: int) -> Iterator[range]:
    """The numbers to send, some at a time."""
    for start in range(first, first + count, BURST):
        yield range(start, min(start + BURST, first + count))


def input_ended() -> threading.Event:
    """Set once standard input is at its end: whoever started this program wants it to stop."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def settled(ask: Callable[[], Any], wanted: Any) -> Any:
    """What is found as soon as it is ``wanted``, or what it is after a while.

    A change is done when it is answered; brokers that are asked hear of it a moment later.
    """
    deadline = time.monotonic() + SETTLING_S
    while (found := ask()) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def owns(partitions: Iterable[int]) -> None:
    tell("owns", sorted(partitions))
