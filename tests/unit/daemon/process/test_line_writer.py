"""``LineWriter`` writes lines in a thread: callers never wait, and dropped lines are counted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kraftjbod.daemon.process.line_writer import LineWriter

MORE_THAN_A_PIPE_TAKES = 200_000
LONG_S = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def dropped_line(count: int) -> str:
    return f"{count} dropped\n"


def read_until(fd: int, end: bytes) -> bytes:
    found = bytearray()
    while not found.endswith(end):
        found += os.read(fd, 1 << 16)
    return bytes(found)


@pytest.mark.parametrize("blocks", [True, False])
def test_line_writer_never_blocks_and_counts_dropped_lines(
    pipe: tuple[int, int], blocks: bool
) -> None:
    reader, fd = pipe
    os.set_blocking(fd, blocks)
    writer = LineWriter(fd, dropped_line, max_waiting_bytes=MORE_THAN_A_PIPE_TAKES)
    lines = [f"{number} {'x' * 1000}\n" for number in range(1_000)]
    for line in lines:
        writer.write(line)
    assert not writer.close(0.0), "the thread still waits, but its caller does not"
    kept, dropped, found = list[str](), 0, ""
    while len(kept) + dropped < len(lines):
        found += os.read(reader, 1 << 16).decode()
        *whole, found = found.splitlines(keepends=True)
        if found.endswith("\n"):
            whole, found = [*whole, found], ""
        for line in whole:
            if line.endswith(" dropped\n"):
                dropped += int(line.split()[0])
            else:
                kept.append(line)
    # Lines are accepted again as soon as the pipe has space, even between two dropped lines.
    numbers = [int(line.split()[0]) for line in kept]
    assert kept == [lines[number] for number in sorted(set(numbers))]
    assert dropped > 0


def test_line_writer_close_writes_queued_lines(pipe: tuple[int, int]) -> None:
    reader, fd = pipe
    writer = LineWriter(fd, dropped_line)
    for number in range(100):
        writer.write(f"{number}\n")
    assert writer.close(LONG_S)
    assert read_until(reader, b"99\n").decode().split() == [str(number) for number in range(100)]


def test_line_writer_write_to_closed_pipe_raises_nothing() -> None:
    reader, fd = os.pipe()
    os.close(reader)
    writer = LineWriter(fd, dropped_line)
    for _ in range(10):
        writer.write("into a pipe without a reader\n")
    assert writer.close(LONG_S)
    os.close(fd)
