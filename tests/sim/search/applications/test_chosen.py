from __future__ import annotations

from collections import Counter

from tests.sim.search.applications.chosen import Kind, draw_applications


def test_draw_applications_draws_each_in_about_a_third_of_the_seeds_but_hasty_in_a_few() -> None:
    drawn = Counter(kind for seed in range(300) for kind in draw_applications(seed))
    assert 2 < drawn.pop(Kind.HASTY) < 20
    assert set(drawn) == set(Kind) - {Kind.HASTY}
    assert all(60 < count < 150 for count in drawn.values())
    assert draw_applications(7) == draw_applications(7)
