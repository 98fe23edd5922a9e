"""MetadataFollowers: when a broker was caught up."""

from __future__ import annotations

from kraftjbod.controller.quorum.metadata_followers import SILENT_MS, MetadataFollowers
from kraftjbod.core.ids import BrokerId

B1 = BrokerId(1)


def test_who_is_always_a_little_behind_is_caught_up_all_the_same() -> None:
    followers = MetadataFollowers()
    caught_up = []
    # (from where on, the log's end, when): each time it asks for what had come by the last time.
    for at, end, wall_ms in [(0, 5, 100), (5, 9, 200), (9, 12, 300), (10, 20, 400), (20, 20, 500)]:
        followers.fetched(B1, at, end=end, wall_ms=wall_ms)
        caught_up.append(followers.of_now(wall_ms)[B1].last_caught_up_ms)
    assert caught_up == [-1, 100, 200, 200, 500]
    assert followers.of_now(500 + SILENT_MS)
    assert not followers.of_now(501 + SILENT_MS)
