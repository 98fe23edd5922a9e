"""LOOP. ``ClusterPeers``: decides by address which hosts are members of the cluster.

* If ``cluster.action.allowed.hosts`` is set, only the hosts that it names are members. Otherwise
  they are this host (loopback) and the hosts in the metadata and configuration (``known_hosts``).
* :meth:`ClusterPeers.resolve_periodically` resolves host names. A request for members from an
  unknown host triggers an earlier resolution, at most once per second. The request waits for a
  limited time and does not block the loop.
* A temporary failure to resolve a name keeps its addresses. A name that does not exist loses them.

An address is weak evidence: this check keeps strangers out, but is no authentication
(ADR 105).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from kraftjbod.core.allowed_hosts import LOOPBACK, MAX_HOSTS, Address, AllowedHosts, address_of
from kraftjbod.core.telemetry import get_logger, shortened
from kraftjbod.net.connection import addresses_of

_log = get_logger()
_INTERVAL_S: Final = 30.0
#: Minimum time between resolutions, however many unknown hosts send requests.
LEAST_INTERVAL_S: Final = 1.0
#: How long a request of an unknown host waits for names to be resolved.
PATIENCE_S: Final = 2.0
#: Requests that may wait at once; further requests are refused without waiting.
MAX_WAITING: Final = 1000
_RESOLVE_TIMEOUT_MS: Final = 5_000
#: Names resolved in parallel. The loop has few threads for this, and other code needs them too.
_RESOLVED_AT_ONCE: Final = 2
_MAX_ADDRESSES_PER_NAME: Final = 64
_MAX_VERDICTS: Final = 10_000

Resolve = Callable[[str], Awaitable[Collection[str] | None]]
"""Returns the addresses of a host name: empty if it does not exist, None if unknown for now."""
_NO_HOSTS: Final = frozenset[str]()


async def _resolve(name: str) -> Collection[str] | None:
    return await addresses_of(name, timeout_ms=_RESOLVE_TIMEOUT_MS)


class ClusterPeers:
    """Decides whether a host is a member of the cluster. Not thread-safe.

    Host names are resolved only while :meth:`resolve_periodically` runs.
    """

    def __init__(
        self,
        allowed: AllowedHosts | None = None,
        *,
        known_hosts: Callable[[], frozenset[str]] = lambda: _NO_HOSTS,
        resolve: Resolve = _resolve,
    ) -> None:
        """:param allowed: the configured hosts; if None, loopback and ``known_hosts``.
        :param known_hosts: returns addresses and names of members, the same object while the hosts
            are unchanged. Not called if ``allowed`` is given.
        :param resolve: resolves one host name.
        """
        self._is_every = allowed is not None and allowed.is_every
        self._networks = LOOPBACK if allowed is None else allowed.networks
        named = _NO_HOSTS if allowed is None else frozenset(allowed.names)
        self._known_hosts = known_hosts if allowed is None else lambda: named
        self._resolve = resolve
        #: The last result of ``known_hosts``.
        self._hosts = _NO_HOSTS
        self._literal: frozenset[Address] = frozenset()
        #: Addresses by name, for the names that could be resolved.
        self._resolved: dict[str, frozenset[Address]] = {}
        self._members: frozenset[Address] = frozenset()
        #: Cached results by host, for the current members; followers need one per fetch.
        self._verdicts: dict[str, bool] = {}
        self._is_due = asyncio.Event()
        #: Completed whenever a name, or all names, were resolved.
        self._news: asyncio.Future[None] | None = None
        self._is_resolving = False
        self._resolved_at_s = float("-inf")
        self._waiting = 0

    def allows(self, host: str) -> bool:
        """Return whether the numeric address ``host`` is known to be a member's. Resolves no
        names."""
        if self._is_every:
            return True
        verdict = self._verdicts.get(host)
        if verdict is None:
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[host] = self._judge(host)
        return verdict

    def _judge(self, host: str) -> bool:
        address = address_of(host)
        if address is None:
            return False  # The peer disconnected before its address was read.
        return address in self._members or any(address in one for one in self._networks)

    async def admits(self, host: str) -> bool:
        """Return whether ``host`` is a member; if it is unknown, wait up to 2 s for names to be
        resolved.

        Names are resolved at most once per second, however many unknown hosts send requests. While
        1,000 calls wait, further calls return at once.
        """
        if self.allows(host):
            return True
        has_new_names = self._take_hosts()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PATIENCE_S
        is_due = has_new_names or loop.time() - self._resolved_at_s >= LEAST_INTERVAL_S
        if is_due and self._names:
            self._is_due.set()
        if self._waiting < MAX_WAITING:
            self._waiting += 1
            try:
                while (self._is_due.is_set() or self._is_resolving) and not self.allows(host):
                    if not await self._news_until(until_s):
                        break
            finally:
                self._waiting -= 1
        return self.allows(host)

    def note_refused(self, api: str, peer: str) -> None:
        """Log that ``peer`` (``host:port``) sent a request that is only for members."""
        _log.warning("cluster_action_refused", api=shortened(api), peer=peer)

    async def resolve_periodically(self) -> None:
        """Resolve the host names every 30 s, or earlier when ``admits`` needs it, until
        cancelled."""
        while True:
            self._take_hosts()
            self._is_due.clear()
            self._is_resolving = True
            self._resolved_at_s = asyncio.get_running_loop().time()
            try:
                await self._resolve_all()
            finally:
                self._is_resolving = False
                self._notify_waiting()
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    await self._is_due.wait()
            except TimeoutError:
                continue

    @property
    def _names(self) -> list[str]:
        return [host for host in self._hosts if address_of(host) is None][:MAX_HOSTS]

    def _take_hosts(self) -> bool:
        """Apply the current list of hosts; return whether it has a name that was never resolved."""
        hosts = self._known_hosts()
        if hosts is self._hosts:
            return False
        self._hosts = hosts
        found = map(address_of, hosts)
        self._literal = frozenset(address for address in found if address is not None)
        self._resolved = {name: known for name, known in self._resolved.items() if name in hosts}
        self._note_members()
        return any(name not in self._resolved for name in self._names)

    async def _resolve_all(self) -> None:
        names = sorted(self._names)
        slots = asyncio.Semaphore(_RESOLVED_AT_ONCE)

        async def resolve_one(name: str) -> None:
            async with slots:
                found = await self._resolve(name)
            if found is not None and name in self._hosts:
                addresses = map(address_of, list(found)[:_MAX_ADDRESSES_PER_NAME])
                self._resolved[name] = frozenset(one for one in addresses if one is not None)
                self._note_members()
                self._notify_waiting()

        async with asyncio.TaskGroup() as resolving:
            for name in names:
                resolving.create_task(resolve_one(name))

    def _note_members(self) -> None:
        self._members = self._literal.union(*self._resolved.values())
        self._verdicts.clear()

    async def _news_until(self, until_s: float) -> bool:
        """Wait until a name is resolved; return False if the loop time ``until_s`` passed first."""
        loop = asyncio.get_running_loop()
        if self._news is None:
            self._news = loop.create_future()
        await asyncio.wait({self._news}, timeout=max(0.0, until_s - loop.time()))
        return loop.time() < until_s

    def _notify_waiting(self) -> None:
        if self._news is not None:
            self._news.set_result(None)
            self._news = None


#: Accepts every host, for a listener that only members can reach.
EVERY_HOST_ALLOWED: Final = ClusterPeers(AllowedHosts(is_every=True))
