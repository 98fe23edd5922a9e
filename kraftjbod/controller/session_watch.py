"""LOOP. ``SessionWatch``: fences brokers whose sessions have ended.

``controller/brokers/heartbeat_manager.py`` decides whether a session has ended. This file decides
when to check: periodically, at the end of each reconnect grace, and after a failed probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kraftjbod.controller.brokers.suspect_probe import IsRefused, SuspectProbe
from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.metadata.registrations import BrokerRegistration

#: Shortest and longest interval between two sweeps.
_SWEEP_INTERVAL_MS: Final = (200, 500)
#: A sweep delays the end of a session by at most this part of the session's length.
_SWEEPS_PER_SESSION: Final = 18
#: A grace that begins between two sweeps is seen by at least one sweep before it ends.
_SWEEPS_PER_GRACE: Final = 2

Decide = Callable[[], ControllerResult[None]]


class SessionWatch:
    """Fences brokers whose sessions have ended.

    Run ``sweep()``, which checks all sessions at intervals, and ``probe()``, which checks brokers
    that closed their connections, as tasks. Both run until cancelled.
    """

    def __init__(
        self,
        *,
        managers: Callable[[], ControlManagers],
        clock: Clock,
        metrics: Metrics,
        is_refused: IsRefused,
        do_pass: Callable[[Decide], Awaitable[object]],
    ) -> None:
        """:param managers: returns the present control managers.
        :param is_refused: checks an address of a broker that may be dead.
        :param do_pass: repeats a decision until it has no records.
        """
        self._managers = managers
        self._clock = clock
        self._metrics = metrics
        metrics.count("TimedOutBrokerHeartbeatCount", 0)
        self._do_pass = do_pass
        #: Expired brokers that are not fenced yet, because a write may have to wait for free space.
        self._expired: set[BrokerId] = set()
        self._probe = SuspectProbe(
            take_suspects=lambda: managers().take_suspects(),
            is_refused=is_refused,
            on_refused=self._fence_refused,
        )
        self._log = get_logger(component="controller")

    def connection_closed(self, connection: ConnectionId, *, is_reset: bool) -> None:
        """Note that the other side closed ``connection``, and probe a broker that used it last.

        :param is_reset: whether it was reset; then the broker's session continues.
        """
        now_ms = self._clock.now_ms()
        self._managers().connection_closed(connection, now_ms, is_reset=is_reset)
        self._probe.wake()

    def fenced(self, broker_id: BrokerId) -> None:
        """Note that the broker is fenced, so that the end of a later session is logged again."""
        self._expired.discard(broker_id)

    def forget(self) -> None:
        """Forget which brokers' sessions have expired, because this controller is not active any
        more.
        """
        self._expired.clear()

    async def probe(self) -> None:
        await self._probe.run_probes()

    async def sweep(self) -> None:
        last_ms = self._clock.now_ms()
        while True:
            managers = self._managers()
            wait_ms = sweep_interval_ms(managers.settings)
            until_gone_ms = managers.until_gone_ms(self._clock.now_ms())
            if until_gone_ms is not None:
                # Frequent sweeps detect short pauses, which extend the grace.
                wait_ms = min(_SWEEP_INTERVAL_MS[0], until_gone_ms)
            await asyncio.sleep(wait_ms / 1000)
            now_ms = self._clock.now_ms()
            # While this process is paused, heartbeats wait in its sockets. So silence during a
            # pause proves nothing.
            pause_ms = max(0, now_ms - last_ms - wait_ms)
            if self._managers().discount_pause(pause_ms, now_ms):
                self._log.warning("controller_was_paused", pause_ms=pause_ms)
            last_ms = now_ms
            await self._do_pass(self._fence_stale)
            await self._do_pass(self._adjust_session_limit)
            self._probe.wake()

    def _adjust_session_limit(self) -> ControllerResult[None]:
        return self._managers().adjust_session_limit(self._clock.now_ms())

    async def _fence_refused(self, broker: BrokerRegistration) -> None:
        self._managers().refused(broker)
        await self._do_pass(self._fence_stale)

    def _fence_stale(self) -> ControllerResult[None]:
        managers, now_ms = self._managers(), self._clock.now_ms()
        broker_id = managers.find_stale_broker(now_ms)
        if broker_id is None:
            return ControllerResult(response=None)
        if broker_id not in self._expired:
            self._expired.add(broker_id)
            self._log_expired(broker_id, is_gone=managers.is_gone(broker_id, now_ms))
        return managers.fence_broker(broker_id)

    def _log_expired(self, broker_id: BrokerId, *, is_gone: bool) -> None:
        if is_gone:
            self._log.warning("broker_gone", broker_id=broker_id)
            return
        self._metrics.count("TimedOutBrokerHeartbeatCount")
        timeout_ms = self._managers().settings.broker_session_timeout_ms
        self._log.warning("broker_session_expired", broker_id=broker_id, timeout_ms=timeout_ms)


def sweep_interval_ms(settings: DynamicControllerConfig) -> int:
    """Return the longest time between two sweeps.

    Short sessions and graces need frequent sweeps. With the defaults a sweep per 500 ms suffices,
    and each one wakes an idle process.
    """
    least_ms, most_ms = _SWEEP_INTERVAL_MS
    wanted_ms = settings.broker_session_timeout_ms // _SWEEPS_PER_SESSION
    if settings.broker_reconnect_grace_ms:
        wanted_ms = min(wanted_ms, settings.broker_reconnect_grace_ms // _SWEEPS_PER_GRACE)
    return max(least_ms, min(most_ms, wanted_ms))
