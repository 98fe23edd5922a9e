"""Those who follow the metadata."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import (
    ErrorCode,
    OperatingError,
)
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.raft.machine.messages import HardState
from tests.unit.controller.conftest import ONE, Node


async def test_a_follower_that_is_ahead_is_reported(node: Node) -> None:
    request = m.FetchMetadataRequest(broker_id=ONE, fetch_offset=99, max_wait_ms=0, max_bytes=1000)
    with pytest.raises(OperatingError) as refused:
        await node.controller.handle(request)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("position", [0, 1 << 40])
async def test_a_follower_that_asks_for_a_snapshot_that_is_not_there_is_reported(
    node: Node, position: int
) -> None:
    """It was an assertion that failed, and a closed connection."""
    request = m.FetchMetadataRequest(
        broker_id=ONE,
        fetch_offset=0,
        max_wait_ms=0,
        max_bytes=1000,
        snapshot_offset=7,
        snapshot_position=position,
    )
    with pytest.raises(OperatingError) as refused:
        await node.controller.handle(request)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    node.controller._start_snapshot()
    while await node.controller._driver.committed.newest_snapshot() is None:
        await asyncio.sleep(0)
    newest = node.managers.state.offset
    request = request.model_copy(update={"snapshot_offset": newest})
    if position:
        with pytest.raises(OperatingError) as refused:
            await node.controller.handle(request)
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    else:
        answer = await node.controller.handle(request)
        assert isinstance(answer, m.FetchMetadataResponse)
        assert answer.snapshot_offset == newest


async def test_a_piece_that_was_read_before_another_one_led_is_not_of_the_new_term(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader's snapshot may have the same state in another order."""
    driver = node.controller._driver
    node.controller._start_snapshot()
    while (newest := await driver.committed.newest_snapshot()) is None:
        await asyncio.sleep(0)
    term, read = driver.term, driver.committed.read_snapshot

    async def read_slowly(*which: int) -> tuple[bytes, int] | None:
        found = await read(*which)
        driver.core._hard_state = HardState(term=term + 1)
        return found

    monkeypatch.setattr(driver.committed, "read_snapshot", read_slowly)
    answer = await node.controller.handle(
        m.FetchMetadataRequest(
            broker_id=ONE,
            fetch_offset=0,
            max_wait_ms=0,
            max_bytes=1000,
            snapshot_offset=newest.last_offset,
        )
    )
    assert isinstance(answer, m.FetchMetadataResponse)
    assert (driver.term, answer.controller_epoch) == (term + 1, term)
