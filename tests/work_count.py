"""``count_work``: the work of a call, as a number that is the same on every machine.

Tests never assert times. A count of bytecodes shows whether the cost of an operation depends on a
size: loops, comprehensions and generators execute bytecodes for each element. Copies and sorts in C
execute none, and are counted by the memory that they take at once.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple


class Work(NamedTuple):
    bytecodes: int
    peak_bytes: int
    """Most memory that was allocated at once, above the memory before the call."""


def count_bytecodes(call: Callable[[], object]) -> int:
    """Return the number of bytecodes that ``call`` executes in this thread."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory that ``call`` allocates at once."""
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
        gc.enable()
