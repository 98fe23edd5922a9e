"""LOOP. Forwards requests with many items to the controller, in parts that are sent one at a time.

* A part is limited in number and bytes, so that a large request does not delay the controller or
  other requests of this broker.
* Each part takes effect on its own, as each item in Kafka's requests does. If a part fails as a
  whole or is not answered, its items and all following items get that error.
* An item that is too large for a part is refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, TypeVar

from kraftjbod.broker.cluster.controller_channel import Asks, ControllerChannel, forward_timeout_ms
from kraftjbod.core.errors import ErrorCode, OperatingError, RequestTimedOutError
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import (
    MAX_FORWARDED_BYTES,
    MAX_FORWARDED_ITEMS,
    MAX_ITEMS_PER_REQUEST,
)
from kraftjbod.protocol.rpc_codec import encoded_size
from kraftjbod.protocol.rpc_messages import (
    FindTopicsRequest,
    FoundTopic,
    RpcBody,
    RpcResponse,
    TopicRef,
)

Item = TypeVar("Item", bound=RpcBody)
Outcome = TypeVar("Outcome", bound=RpcBody)
R = TypeVar("R", bound=RpcResponse)

_TOO_LARGE: Final = OperatingError(
    f"this is more than the {MAX_FORWARDED_BYTES} bytes that may be said of one thing",
    code=ErrorCode.INVALID_REQUEST,
)
_TOO_MANY: Final = OperatingError(
    f"one request may be about {MAX_ITEMS_PER_REQUEST} things; ask again for this one",
    code=ErrorCode.INVALID_REQUEST,
)


class TimeLeft:
    """Deadline of a client request that is forwarded to the controller in several requests.

    ``asked_ms`` is the client's timeout in ms. The deadline uses the limits of
    ``forward_timeout_ms`` and starts when the object is created.
    """

    def __init__(self, asked_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + forward_timeout_ms(asked_ms) / 1000

    def ms(self) -> int:
        """Return the milliseconds left; at least 1, so that a request sent too late times out."""
        return max(1, round((self._deadline_s - self._loop.time()) * 1000))


async def find_topics(
    channel: ControllerChannel, refs: Iterable[TopicRef], *, timeout_ms: int
) -> list[FoundTopic]:
    """Ask the controller for the present names and ids of topics.

    A topic that does not exist, or was not answered in time, has an error code. A caller that then
    names the topic by the id found here cannot affect a later topic with the same name. An old
    controller does not know this request: its results have neither an id nor an error.
    """
    found = await forward(
        channel,
        refs,
        ask=lambda part: FindTopicsRequest(topics=part),
        outcomes=lambda response: response.topics,
        refuse=lambda ref, error: FoundTopic(
            asked=ref, error_code=error.code, error_message=error.message
        ),
        timeout_ms=timeout_ms,
    )
    return [
        FoundTopic(asked=one.asked) if one.error_code is ErrorCode.UNSUPPORTED_VERSION else one
        for one in found
    ]


async def forward(
    channel: ControllerChannel,
    items: Iterable[Item],
    *,
    ask: Callable[[tuple[Item, ...]], Asks[R]],
    outcomes: Callable[[R], Sequence[Outcome]],
    refuse: Callable[[Item, OperatingError], Outcome],
    timeout_ms: int,
    raises_first: bool = False,
) -> list[Outcome]:
    """Forward all items to the controller in parts, one part at a time.

    :param ask: returns the controller request for some items.
    :param outcomes: returns the outcomes that a controller response contains, in the order of its
        request.
    :param refuse: returns the outcome of an item that failed with an error.
    :param timeout_ms: the client's timeout, for all parts together.
    :param raises_first: whether an error of the first part is raised. The controller has then
        changed nothing, or its answer is lost.
    :return: one outcome per item, in the order of ``items``.
    :raises OperatingError: with ``raises_first``: the first part failed.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + forward_timeout_ms(timeout_ms) / 1000
    ended: list[Outcome] = []
    failure: OperatingError | None = None
    has_answered = False
    async for part in _parts(items, ended, refuse):
        remaining_ms = round((deadline_s - loop.time()) * 1000)
        if failure is None and remaining_ms <= 0 and has_answered:
            failure = RequestTimedOutError("the time was up before this was asked")
        if failure is None:
            try:
                response = await channel.forward(ask(part), timeout_ms=max(1, remaining_ms))
            except OperatingError as e:
                if raises_first and not has_answered:
                    raise
                failure = e
            else:
                has_answered = True
                ended += outcomes(response)
                continue
        ended += [refuse(item, failure) for item in part]
    return ended


async def _parts(
    items: Iterable[Item], ended: list[Outcome], refuse: Callable[[Item, OperatingError], Outcome]
) -> AsyncIterator[tuple[Item, ...]]:
    """Yield ``items`` in parts. Outcomes of items that cannot be forwarded are added to
    ``ended``."""
    part: list[Item] = []
    part_bytes = count = 0
    async for item in in_slices(items):
        count += 1
        size = encoded_size(item) if count <= MAX_ITEMS_PER_REQUEST else 0
        if count > MAX_ITEMS_PER_REQUEST or size > MAX_FORWARDED_BYTES:
            if part:
                # First the outcomes of earlier items: some responses are matched by order.
                yield tuple(part)
                part, part_bytes = [], 0
            ended.append(refuse(item, _TOO_LARGE if size else _TOO_MANY))
            continue
        if part and (len(part) == MAX_FORWARDED_ITEMS or part_bytes + size > MAX_FORWARDED_BYTES):
            yield tuple(part)
            part, part_bytes = [], 0
        part.append(item)
        part_bytes += size
    if part:
        yield tuple(part)
