"""``MetadataFollowers``: the last time at which a broker was caught up."""

from __future__ import annotations

from kraftjbod.controller.quorum.metadata_followers import SILENT_MS, MetadataFollowers
from kraftjbod.core.ids import BrokerId

B1 = BrokerId(1)


def test_constantly_lagging_broker_counts_as_caught_up() -> None:
    followers = MetadataFollowers()
    caught_up = []
    # (fetch offset, log end, time): each fetch asks for the records up to the previous log end.
    for at, end, wall_ms in [(0, 5, 100), (5, 9, 200), (9, 12, 300), (10, 20, 400), (20, 20, 500)]:
        followers.fetched(B1, at, end=end, wall_ms=wall_ms)
        caught_up.append(followers.active_followers(wall_ms)[B1].last_caught_up_ms)
    assert caught_up == [-1, 100, 200, 200, 500]
    assert followers.active_followers(500 + SILENT_MS)
    assert not followers.active_followers(501 + SILENT_MS)
