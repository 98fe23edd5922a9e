"""WIRE. Progress of moving replicas: bytes, rate and remaining time of each.

The bytes are those that brokers report. For a move between directories, the size of the future copy
is compared with that of the current one. For a move between brokers, the size of the new replica is
compared with that of the leader. All output goes to standard error. rich, whose import takes a
tenth of a second, is used on terminals only.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import click

from kraftjbod.cli.clients.cluster_client import ClusterMetadata
from kraftjbod.cli.clients.replica_admin import OngoingReassignment
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentPlan, Replica
from kraftjbod.cli.reassignment.reassignment_status import (
    Located,
    LogDirs,
    MoveState,
    Ongoing,
    joined,
    locate,
    move_states,
)
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.text.size_text import size_text

SAMPLE_MS: Final = 500
#: Interval of lines without a terminal.
_LINES_EVERY_MS: Final = 5000
_RATE_WINDOW_MS: Final = 10_000
#: If no replica's size changes for this long, the wait ends. The moves continue.
STALLED_AFTER_MS: Final = 300_000
_MAX_SHOWN: Final = 20
_WIDTH_WITH_BARS: Final = 120


class StalledError(KraftJbodError):
    """Nothing has progressed for too long: no move, or a broker does not apply a cordon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """A replica being copied; ``total_bytes`` may grow, because producers continue to write."""

    label: str
    done_bytes: int
    total_bytes: int


Show = Callable[[Sequence[tuple[Copying, str]]], None]
"""Shows each copy with its figures as text."""


def copies(
    plan: ReassignmentPlan, ongoing: Ongoing, metadata: ClusterMetadata, found: LogDirs
) -> list[Copying]:
    """Return the copies of ``plan`` in progress; empty if all are done.

    :param found: the directories of the brokers that :func:`brokers_to_ask` returns.
    """
    located = locate(found)
    between_brokers = [
        copy
        for partition in sorted(plan.replicas.keys() & ongoing.keys())
        for copy in _incoming(partition, ongoing[partition], metadata, located)
    ]
    between_dirs = [_move(state) for state in move_states(plan, found) if state.is_active]
    return between_brokers + between_dirs


def brokers_to_ask(
    plan: ReassignmentPlan, ongoing: Ongoing, metadata: ClusterMetadata
) -> list[int]:
    """Return the brokers whose directories show the progress of ``plan``.

    The result has the brokers with a target directory, and the live brokers that send or receive
    replicas.
    """
    busy: set[int] = set()
    for partition in plan.replicas.keys() & ongoing.keys():
        busy |= {*ongoing[partition].adding, _leader(metadata, partition)}
    named = {replica.broker_id for replica in plan.log_dirs}
    return sorted(named | (busy & metadata.brokers.keys()))


def _leader(metadata: ClusterMetadata, partition: TopicPartition) -> int:
    topic = metadata.topics.get(partition.topic)
    found = topic.partitions.get(partition.partition) if topic else None
    return found.leader if found else -1


def _incoming(
    partition: TopicPartition,
    ongoing: OngoingReassignment,
    metadata: ClusterMetadata,
    located: Mapping[Replica, Located],
) -> Iterator[Copying]:
    whole = located.get(Replica(_leader(metadata, partition), *partition), Located())
    for broker in ongoing.adding:
        copy = located.get(Replica(broker, *partition), Located())
        yield Copying(
            label=f"{partition} to broker {broker}",
            done_bytes=copy.size_bytes,
            total_bytes=whole.size_bytes,
        )
    if not ongoing.adding:
        leaving = f"{partition} leaves broker {joined(ongoing.removing)}"
        yield Copying(label=leaving, done_bytes=0, total_bytes=0)


def _move(state: MoveState) -> Copying:
    replica, located = state.replica, state.located
    return Copying(
        label=f"{replica.topic_partition} on broker {replica.broker_id} to {located.future_dir}",
        done_bytes=located.future_size_bytes,
        total_bytes=located.size_bytes,
    )


class Speed:
    """The rate of a copy over the last 10 seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def add(self, now_ms: int, done_bytes: int) -> None:
        if self._samples and done_bytes < self._samples[-1][1]:
            self._samples.clear()  # The copy was truncated or restarted.
        self._samples.append((now_ms, done_bytes))
        while now_ms - self._samples[0][0] > _RATE_WINDOW_MS:
            self._samples.popleft()

    @property
    def bytes_per_second(self) -> float | None:
        """The rate in bytes per second; None until two samples at different times were added."""
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_ms - first_ms) * 1000 if last_ms > first_ms else None


def figures(copying: Copying, bytes_per_second: float | None) -> str:
    """Return ``12.0 MiB of 40.0 MiB, 30 %, 5.1 MiB/s, 6 s left``.

    :param bytes_per_second: None if the rate is unknown.
    """
    done, total = copying.done_bytes, copying.total_bytes
    parts = [f"{size_text(done)} of {size_text(total)}"]
    if total:
        parts.append(f"{min(100, 100 * done // total)} %")
    if bytes_per_second is not None:
        parts.append(f"{size_text(bytes_per_second)}/s")
    if bytes_per_second and total > done:
        parts.append(f"{_duration((total - done) / bytes_per_second)} left")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


async def follow(
    sample: Callable[[], Awaitable[list[Copying]]],
    *,
    sample_ms: int = SAMPLE_MS,
    stalled_after_ms: int = STALLED_AFTER_MS,
) -> None:
    """Show the copies that ``sample`` returns, every ``sample_ms``, on standard error.

    Return after two empty samples in a row.

    :raises StalledError: for ``stalled_after_ms`` no copy began, ended, or changed its size. A
        source that grows is no progress.
    """
    speeds: dict[str, Speed] = {}
    last_seen: list[tuple[str, int]] = []
    last_change_ms = _now_ms()
    is_quiet = False
    with _screen() as show:
        while True:
            under_way = await sample()
            if is_quiet and not under_way:
                return
            # A move just requested may not be visible yet, so wait for two empty samples.
            is_quiet = not under_way
            now_ms = _now_ms()
            seen = [(copying.label, copying.done_bytes) for copying in under_way]
            if seen != last_seen:
                last_seen, last_change_ms = seen, now_ms
            elif now_ms - last_change_ms > stalled_after_ms:
                raise StalledError(
                    f"no byte has moved for {stalled_after_ms // 1000} s; still under way: "
                    + ", ".join(copying.label for copying in under_way[:_MAX_SHOWN])
                )
            for copying in under_way:
                speeds.setdefault(copying.label, Speed()).add(now_ms, copying.done_bytes)
            show([(c, figures(c, speeds[c.label].bytes_per_second)) for c in under_way])
            await asyncio.sleep(sample_ms / 1000)


def show_once(under_way: Sequence[Copying]) -> None:
    """Print a line per copy without a rate, for at most 20 copies, on standard error."""
    _print_lines([(copying, figures(copying, None)) for copying in under_way])


def _print_lines(shown: Sequence[tuple[Copying, str]]) -> None:
    for copying, text in shown[:_MAX_SHOWN]:
        click.echo(f"{copying.label}: {text}", err=True)
    if len(shown) > _MAX_SHOWN:
        click.echo(f"and {len(shown) - _MAX_SHOWN} more", err=True)


def _now_ms() -> int:
    return round(time.monotonic() * 1000)


@contextmanager
def _screen() -> Iterator[Show]:
    if sys.stderr.isatty():
        with bars() as show:
            yield show
        return
    next_at_ms = 0

    def now_and_then(shown: Sequence[tuple[Copying, str]]) -> None:
        nonlocal next_at_ms
        if shown and _now_ms() >= next_at_ms:
            next_at_ms = _now_ms() + _LINES_EVERY_MS
            _print_lines(shown)

    yield now_and_then


@contextmanager
def bars() -> Iterator[Show]:
    """Context with a function that shows one bar per copy on a terminal, for at most 20 copies."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn
    from rich.table import Column

    console = Console(stderr=True)
    # On a narrow terminal the figures are not shortened.
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True))
    bar = (BarColumn(bar_width=20),) if console.width >= _WIDTH_WITH_BARS else ()
    words = TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True))
    with Progress(name, *bar, words, console=console, transient=True, expand=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(shown: Sequence[tuple[Copying, str]]) -> None:
            visible = {copying.label: (copying, text) for copying, text in shown[:_MAX_SHOWN]}
            for gone in tasks.keys() - visible.keys():
                progress.remove_task(tasks.pop(gone))
            for label, (copying, text) in visible.items():
                if label not in tasks:
                    tasks[label] = progress.add_task(label, text=text)
                progress.update(
                    tasks[label],
                    completed=copying.done_bytes,
                    total=copying.total_bytes,
                    text=text,
                )

        yield show
