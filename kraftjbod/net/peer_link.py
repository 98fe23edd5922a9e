"""LOOP. ``PeerLink``: sends one-way messages to one peer over RPC, at most once.

* The queue is bounded by number and bytes, and drops the oldest messages. Nothing is sent twice.
* One request is in flight at a time and carries the queued messages. The peer answers at once.
* A connection that does not answer is dropped, because a new one may work.
* An error that is not the peer's is a bug, and is raised in the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from kraftjbod.core.errors import ConnectionLostError, OperatingError, RequestTimedOutError
from kraftjbod.core.loop.task_end import raise_task_error
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.protocol.rpc_messages import RpcRequest

T = TypeVar("T")


class PeerLink(Generic[T]):
    """Sends one-way messages to one peer over RPC, each at most once. Connects when there is a
    message to send. Not thread-safe.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        make_request: Callable[[Sequence[T]], RpcRequest],
        size_of: Callable[[T], int],
        backoff: ExponentialBackoff,
        timeout_ms: int,
        max_queued: int,
        max_queued_bytes: int,
        max_batch: int,
        max_batch_bytes: int,
        on_lost: Callable[[], None],
        on_refused: Callable[[OperatingError], None],
        dialer: Dialer = PLAIN,
    ) -> None:
        """:param make_request: returns the request that carries some messages.
        :param size_of: returns the size of a message in bytes.
        :param timeout_ms: time limit of the peer to acknowledge messages. After it the connection
            is aborted.
        :param on_lost: called when the connection was lost or could not be opened, perhaps more
            than once. The queue is dropped then.
        :param on_refused: called when the peer rejects the messages.
        :param dialer: opens the connections.
        """
        self._address = f"{host}:{port}"
        self._make_request = make_request
        self._size_of = size_of
        self._timeout_ms = timeout_ms
        self._max_queued = max_queued
        self._max_queued_bytes = max_queued_bytes
        self._max_batch = max_batch
        self._max_batch_bytes = max_batch_bytes
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._client = RpcClient(
            host,
            port,
            backoff=backoff,
            connect_timeout_ms=timeout_ms,
            on_lost=on_lost,
            dialer=dialer,
        )
        self._queue: deque[T] = deque()
        self._queued_bytes = 0
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def send(self, message: T) -> None:
        """Queue ``message``. The oldest messages of a full queue are dropped."""
        self._queue.append(message)
        self._queued_bytes += self._size_of(message)
        while len(self._queue) > self._max_queued or (
            self._queued_bytes > self._max_queued_bytes and len(self._queue) > 1
        ):
            self._queued_bytes -= self._size_of(self._queue.popleft())
        self._work.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"peer_link {self._address}")
            self._task.add_done_callback(raise_task_error)

    def abandon(self) -> None:
        """Close the link without waiting, and drop the queue: the peer has another address now."""
        if self._task is not None:
            self._task.cancel()
        self._client.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._client.close()

    async def _run(self) -> None:
        while True:
            while self._queue:
                await self._send_some()
            self._work.clear()
            await self._work.wait()

    async def _send_some(self) -> None:
        request = self._make_request(self._take())
        try:
            await self._client.call(request, timeout_ms=self._timeout_ms)
        except ConnectionLostError:
            # Messages queued during the failed attempt are outdated.
            self._queue.clear()
            self._queued_bytes = 0
            self._on_lost()
        except RequestTimedOutError:
            self._client.drop("the peer did not answer")
        except OperatingError as e:
            self._on_refused(e)

    def _take(self) -> list[T]:
        taken: list[T] = []
        size_bytes = 0
        while self._queue and len(taken) < self._max_batch:
            next_bytes = self._size_of(self._queue[0])
            if taken and size_bytes + next_bytes > self._max_batch_bytes:
                break
            taken.append(self._queue.popleft())
            size_bytes += next_bytes
        self._queued_bytes -= size_bytes
        return taken
