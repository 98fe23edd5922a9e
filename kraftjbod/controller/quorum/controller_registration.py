"""LOOP. ``ControllerRegistration``: registers this controller with the active one (KIP-919).

The request is repeated, with increasing pauses, until the replicated metadata contains the
incarnation. It is sent again if the registration disappears: after an operator removed it, or after
the level was lowered and raised. A registered controller that finds another incarnation instead
does not register again, because a second process uses its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_controller_messages import ControllerRegistrationRequest


class ControllerRegistration:
    """Registers this controller at the active controller, and again while the metadata lacks the
    registration, unless another incarnation has replaced it.

    :meth:`run_registration` runs for the controller's lifetime. Use it in the event loop's thread
    only.
    """

    def __init__(
        self,
        *,
        request: ControllerRegistrationRequest,
        state: Callable[[], MetadataState],
        send: Callable[[ControllerRegistrationRequest], Awaitable[object]],
        backoff: ExponentialBackoff,
    ) -> None:
        """:param request: describes this controller, except for the incarnation that it replaces.
        :param state: returns the metadata known here.
        :param send: sends the request to the active controller, and returns once it is committed.
        """
        self._request = request
        self._state = state
        self._send = send
        self._backoff = backoff
        #: Incarnations that may still be visible here for a while after the registration.
        self._expected: frozenset[Uuid | None] | None = None
        self._is_replaced = False
        self._due = asyncio.Event()
        self._log = get_logger(component="controller_registration", node_id=request.controller_id)

    def note_metadata(self) -> None:
        """Wake :meth:`run_registration` if the metadata, which may have changed, lacks this
        registration."""
        if not self._due.is_set() and self._is_due():
            self._due.set()

    async def run_registration(self) -> None:
        while True:
            tries = 0
            while self._is_due():
                tries += 1
                await self._try()
                await asyncio.sleep(self._backoff.wait_ms(tries) / 1000)
            self._due.clear()
            self.note_metadata()
            await self._due.wait()

    async def _try(self) -> None:
        replaced = self._found()
        request = self._request.model_copy(update={"replaced_incarnation_id": replaced})
        try:
            await self._send(request)
        except OperatingError as e:
            self._log.debug("controller_registration_failed", reason=e.message)
        else:
            self._expected = frozenset({replaced, request.incarnation_id, None})

    def _found(self) -> Uuid | None:
        present = self._state().controllers.get(self._request.controller_id)
        return None if present is None else present.incarnation_id

    def _is_due(self) -> bool:
        state, found = self._state(), self._found()
        if not (state.features and state.metadata_version.has_controllers):
            return False
        if found == self._request.incarnation_id:
            return False
        if self._expected is None or found in self._expected:
            return True
        if not self._is_replaced:
            self._is_replaced = True
            self._log.error("controller_registration_replaced", incarnation=str(found))
        return False
