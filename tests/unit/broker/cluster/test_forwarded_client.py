"""The client of a forwarded request is that of the task."""

from __future__ import annotations

import asyncio

from kraftjbod.broker.cluster.forwarded_client import FORWARDED_CLIENT, ForwardedClient


async def test_forwarded_client_is_separate_in_each_task() -> None:
    alice, bob = ForwardedClient("User:alice", "10.0.0.1"), ForwardedClient("User:bob", "10.0.0.2")

    async def handle(client: ForwardedClient) -> ForwardedClient | None:
        FORWARDED_CLIENT.set(client)
        await asyncio.sleep(0)
        return FORWARDED_CLIENT.get()

    assert await asyncio.gather(handle(alice), handle(bob)) == [alice, bob]
    assert FORWARDED_CLIENT.get() is None
