"""Processes that run the seeds of ``sim.py``, with a limit of processes that die."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Final, TypeVar

#: The run ends if processes of the pool die more often.
MAX_POOL_DEATHS: Final = 3

T = TypeVar("T")


def in_processes(play: Callable[[int], T], seeds: Sequence[int], *, jobs: int) -> Iterator[T]:
    """Yield ``play(seed)`` of each seed, in order of completion, from ``jobs`` processes.

    If a process dies, the seeds without a result run again in new processes. A pool of
    ``multiprocessing`` would start processes without limit, and wait for the lost seed for ever.

    :raises SystemExit: processes died more than ``MAX_POOL_DEATHS`` times.
    """
    left, deaths = dict.fromkeys(seeds), 0
    while left:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_prepare)
        try:
            running = {pool.submit(play, seed): seed for seed in left}
            for done in as_completed(running):
                result = done.result()
                del left[running[done]]
                yield result
        except BrokenProcessPool as e:
            deaths += 1
            first = " ".join(map(str, itertools.islice(left, 2 * jobs)))
            what = (
                f"a process of the pool died ({e}); {len(left)} seeds have no result, and one of "
                f"the first is a likely cause: {first}"
            )
            if deaths > MAX_POOL_DEATHS:
                sys.exit(f"{what}. Processes died {deaths} times: run one of these seeds alone")
            print(f"{what}. Attempt {deaths} of {MAX_POOL_DEATHS} with new processes", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
    """Exclude imported objects from garbage collections, which would mostly visit these."""
    gc.disable()
    gc.freeze()
