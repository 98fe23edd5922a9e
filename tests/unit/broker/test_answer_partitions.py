"""``answer_partitions`` runs in parallel and limits the number of partitions per request."""

from __future__ import annotations

from kraftjbod.broker.answer_partitions import answer_partitions
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST


async def test_answer_partitions_above_item_limit_keeps_order_and_refuses_the_rest() -> None:
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
