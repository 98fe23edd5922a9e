"""Many partitions side by side, and no more of them than a request may be about."""

from __future__ import annotations

from kraftjbod.broker.answer_partitions import answer_partitions
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST


async def test_answers_keep_the_order_and_what_is_beyond_the_limit_is_refused() -> None:
    async def answer(number: int) -> str:
        return f"{number} answered"

    count = MAX_ITEMS_PER_REQUEST + 2
    answers = await answer_partitions(
        range(count), answer, refuse=lambda number: f"{number} refused"
    )
    assert answers[:2] == ["0 answered", "1 answered"]
    assert answers[-3:] == [
        f"{count - 3} answered",
        f"{count - 2} refused",
        f"{count - 1} refused",
    ]
