"""``Collector`` freezes objects that survived a long garbage collection."""

from __future__ import annotations

import gc
import itertools

import pytest

from kraftjbod.daemon.process.collector import Collector


@pytest.mark.parametrize(("long_s", "is_frozen"), [(1.0, True), (1.5, False)])
def test_collector_freezes_objects_that_survive_a_long_collection(
    long_s: float, is_frozen: bool
) -> None:
    ticks = itertools.count()
    collector = Collector(lambda: float(next(ticks)), long_s)
    before = gc.get_freeze_count()
    collector.watch()
    try:
        gc.collect(1)
        assert gc.get_freeze_count() == before, "only a young generation was collected"
        gc.collect()
        assert (gc.get_freeze_count() > before) is is_frozen
    finally:
        collector.unwatch()
        gc.unfreeze()
