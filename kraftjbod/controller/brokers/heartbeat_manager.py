"""PURE. Soft state about brokers: last contact, metadata offset, next state.

A session ends by silence, or sooner by a sign of death. There are two signs:

* the broker's side closed the connection of its last request, as the kernel does for a dying
  process, and no request came on another connection within the grace;
* the broker's address refuses connections, which needs no grace.

A live broker reconnects at once. A broker that was fenced by mistake is unfenced by its next
heartbeat, and fencing loses no record, because leader epochs are raised. Until the broker's next
request, another incarnation may register in its place. The same holds for a broker that sends no
request to a new controller within the grace, because live brokers do.

No broker is fenced before its session is over by the broker's clock, unless the broker's side has
closed its connection: until then it answers clients from memory (ADR 98).

This state is not replicated. A new active controller starts with fresh contact times for all
brokers that are unfenced in the metadata. The former controller may have answered them until its
lease was over, with a longer session: inherited sessions last ``session_limit_ms`` of the metadata.

States of a broker, all but the last visible in its registration::

    FENCED -> UNFENCED -> CONTROLLED_SHUTDOWN -> SHUTDOWN_NOW
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from kraftjbod.core.ids import BrokerEpoch, BrokerId, ConnectionId
from kraftjbod.metadata.registrations import BrokerRegistration


class BrokerControlState(Enum):
    """The state that the controller grants a broker (KIP-631)."""

    FENCED = "fenced"
    """Leads no partition and is in no ISR."""
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    """Its leaderships are being moved to other brokers."""
    SHUTDOWN_NOW = "shutdown now"
    """It may end its process. It counts as fenced."""

    @classmethod
    def of_broker(cls, broker: BrokerRegistration) -> BrokerControlState:
        if broker.fenced:
            return cls.FENCED
        return cls.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else cls.UNFENCED

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequests:
    """The requests of one heartbeat (to be fenced or to shut down), and the conditions under which
    the controller grants them.
    """

    want_fence: bool
    """The broker asks to stay fenced, or to be fenced."""
    want_shut_down: bool
    """The broker asks for a controlled shutdown."""
    may_unfence: bool
    """Whether it has replayed its own registration, and all its replicas have directories."""
    leads_something: bool
    """The broker still leads a partition."""
    shutdown_is_known: bool
    """Every active broker has replayed the records that moved its leaderships away."""


def next_state(current: BrokerControlState, requests: HeartbeatRequests) -> BrokerControlState:
    """Return the broker's state after a heartbeat, by the rules of KIP-631.

    A fenced broker becomes unfenced once it may. A broker that asks to shut down may do so once it
    leads nothing and, if its leaderships were moved, the active brokers know that. It need not wait
    if it is fenced, or asks to be fenced with its first request to shut down.
    """
    match current:
        case BrokerControlState.FENCED:
            if requests.want_shut_down:
                return BrokerControlState.SHUTDOWN_NOW
            if requests.want_fence or not requests.may_unfence:
                return BrokerControlState.FENCED
            return BrokerControlState.UNFENCED
        case BrokerControlState.UNFENCED:
            if requests.want_fence:
                if requests.want_shut_down:
                    return BrokerControlState.SHUTDOWN_NOW
                return BrokerControlState.FENCED
            if not requests.want_shut_down:
                return BrokerControlState.UNFENCED
            if requests.leads_something:
                return BrokerControlState.CONTROLLED_SHUTDOWN
            return BrokerControlState.SHUTDOWN_NOW
        case BrokerControlState.CONTROLLED_SHUTDOWN:
            if requests.leads_something or not requests.shutdown_is_known:
                return BrokerControlState.CONTROLLED_SHUTDOWN
            return BrokerControlState.SHUTDOWN_NOW
        case BrokerControlState.SHUTDOWN_NOW:
            return BrokerControlState.SHUTDOWN_NOW
        case _:
            assert_never(current)


@dataclass(slots=True)
class _Contact:
    epoch: BrokerEpoch
    last_ms: int
    #: Earliest end of the session. It never decreases, because an answer that announces a shorter
    #: session may not arrive.
    until_ms: int
    metadata_offset: int = -1
    #: Offset of the entry that moved its leaderships away; None outside controlled shutdown.
    shutdown_offset: int | None = None
    #: Connection of its last request; None if unknown or closed.
    connection: ConnectionId | None = None
    #: When the broker's side closed that connection; None if it did not.
    closed_ms: int | None = None
    #: Whether the connection was reset. A live broker may not have noticed, so its session
    #: continues.
    is_reset: bool = False
    #: Whether it sent nothing to this controller yet, which took over at ``last_ms``.
    is_inherited: bool = False
    #: Whether a probe of its address was started, and whether its address refused connections.
    is_probed: bool = False
    is_refused: bool = False


class BrokerHeartbeatManager:
    """Tracks the last contact with each broker and tells whether the broker's session is valid.

    The state is in memory only. ``now_ms`` is monotonic in all methods.
    """

    def __init__(self, *, session_timeout_ms: int, reconnect_grace_ms: int) -> None:
        """Create a manager without contacts.

        :param session_timeout_ms: silence that ends a session.
        :param reconnect_grace_ms: time for a broker whose connection closed to send a request on
            another one; 0 ignores closed connections.
        """
        self.set_limits(session_timeout_ms, reconnect_grace_ms)
        self._contacts: dict[BrokerId, _Contact] = {}

    def set_limits(self, session_timeout_ms: int, reconnect_grace_ms: int) -> None:
        """Change the limits. A running session lasts at least as long as was announced to the
        broker."""
        self.session_timeout_ms = session_timeout_ms
        self._reconnect_grace_ms = reconnect_grace_ms

    def touch(
        self,
        broker_id: BrokerId,
        epoch: BrokerEpoch,
        now_ms: int,
        metadata_offset: int = -1,
        connection: ConnectionId | None = None,
    ) -> None:
        """Note a request of the broker. A new epoch starts a new session.

        :param metadata_offset: the offset that the broker has replayed; -1 if the request does not
            contain it.
        :param connection: the connection of the request; None if unknown.
        """
        contact = self._contacts.get(broker_id)
        if contact is None or contact.epoch != epoch:
            contact = self._contacts[broker_id] = _Contact(epoch, now_ms, now_ms)
        contact.last_ms = now_ms
        contact.until_ms = max(contact.until_ms, now_ms + self.session_timeout_ms)
        contact.is_probed = contact.is_refused = False
        contact.metadata_offset = max(contact.metadata_offset, metadata_offset)
        contact.connection, contact.closed_ms = connection, None
        contact.is_inherited = contact.is_reset = False

    def connection_closed(
        self, connection: ConnectionId, now_ms: int, *, is_reset: bool = False
    ) -> None:
        """Record that the broker closed ``connection``, unless the broker has since used another
        connection.

        :param is_reset: whether the connection was reset, perhaps by a firewall. After a reset the
            session continues, but another incarnation may take the broker's place.
        """
        if not self._reconnect_grace_ms:
            return
        for contact in self._contacts.values():
            if contact.connection == connection:
                contact.connection, contact.is_reset = None, is_reset
                contact.closed_ms = None if is_reset else now_ms

    def end_session(self, broker_id: BrokerId) -> None:
        """Forget a broker that shut down or was removed, so that it may register again at once."""
        self._contacts.pop(broker_id, None)

    def restart(
        self, brokers: Iterable[BrokerRegistration], now_ms: int, session_limit_ms: int
    ) -> None:
        """Start a session for every unfenced broker, because this controller became the leader.

        :param session_limit_ms: longest session that former controllers may have announced.
        """
        self._contacts = {
            broker.broker_id: _Contact(
                broker.epoch, now_ms, now_ms + session_limit_ms, is_inherited=True
            )
            for broker in brokers
            if not broker.fenced
        }

    def discount_pause(self, pause_ms: int, now_ms: int) -> None:
        """Extend deadlines by a pause of this process, during which requests waited in its sockets.

        A long pause extends sessions. Every pause extends the reconnect graces.

        :param pause_ms: duration of the pause, which ends now.
        """
        is_long = self.is_long_pause(pause_ms)
        for contact in self._contacts.values():
            if is_long:
                contact.last_ms = min(now_ms, contact.last_ms + pause_ms)
                contact.until_ms += pause_ms
            if contact.closed_ms is not None:
                contact.closed_ms = min(now_ms, contact.closed_ms + pause_ms)

    def is_long_pause(self, pause_ms: int) -> bool:
        return pause_ms > self.session_timeout_ms // 2

    def has_longer_sessions(self, now_ms: int) -> bool:
        """Return whether a broker may rely on a longer session than one that is announced at
        ``now_ms``."""
        end_ms = now_ms + self.session_timeout_ms
        return any(contact.until_ms > end_ms for contact in self._contacts.values())

    def has_valid_session(self, broker_id: BrokerId, now_ms: int) -> bool:
        contact = self._contacts.get(broker_id)
        is_heard = contact is not None and now_ms < contact.until_ms
        return is_heard and not self.is_gone(broker_id, now_ms)

    def is_gone(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Return whether the broker's process is known to have ended: the process closed its
        connection and the grace period is over, or its address refuses connections.
        """
        contact = self._contacts.get(broker_id)
        if contact is None:
            return False
        closed_ms = contact.closed_ms
        is_late = closed_ms is not None and now_ms - closed_ms >= self._reconnect_grace_ms
        return contact.is_refused or is_late

    def take_suspects(self) -> list[tuple[BrokerId, BrokerEpoch]]:
        """Return id and epoch of the brokers that closed their connection, for a probe.

        Each broker is returned once until its next request. Brokers whose connection was reset are
        left out. So are brokers that never sent a request to this controller: a firewall may both
        block their heartbeats and refuse connections.
        """
        suspects = []
        for broker_id, contact in self._contacts.items():
            if not contact.is_probed and contact.closed_ms is not None:
                contact.is_probed = True
                suspects.append((broker_id, contact.epoch))
        return suspects

    def refused(self, broker_id: BrokerId, epoch: BrokerEpoch) -> None:
        """Note that a suspect's address refuses connections.

        Ignored if the broker sent a request since the probe, or registered again (another epoch).
        """
        contact = self._contacts.get(broker_id)
        if contact is not None and contact.epoch == epoch and contact.is_probed:
            contact.is_refused = True

    def _is_suspect(self, contact: _Contact, now_ms: int) -> bool:
        grace_ms = self._reconnect_grace_ms
        stays_away = contact.is_inherited and 0 < grace_ms <= now_ms - contact.last_ms
        return contact.closed_ms is not None or contact.is_reset or stays_away

    def may_be_replaced(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Return whether another incarnation may register, because the last one shows no sign of
        life."""
        contact = self._contacts.get(broker_id)
        if contact is None or not self.has_valid_session(broker_id, now_ms):
            return True
        return self._is_suspect(contact, now_ms)

    def until_gone_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until the next reconnect grace ends: then a broker that closed
        its connection and sent nothing on another one counts as gone. None if no grace runs.
        """
        ends = (
            contact.closed_ms + self._reconnect_grace_ms - now_ms
            for contact in self._contacts.values()
            if contact.closed_ms is not None
        )
        return min((wait_ms for wait_ms in ends if wait_ms > 0), default=None)

    def find_stale(self, unfenced: Iterable[BrokerId], now_ms: int) -> BrokerId | None:
        """Return the broker without a valid session that has been silent the longest; None if every
        broker in ``unfenced`` has a valid session.

        :param unfenced: the brokers to examine.
        """
        stale = [broker for broker in unfenced if not self.has_valid_session(broker, now_ms)]
        return min(stale, key=self._last_ms, default=None)

    def note_shutdown_offset(self, broker_id: BrokerId, offset: int) -> None:
        """Note that the entry at ``offset`` moved leaderships of this broker away.

        A later entry replaces an earlier one. No effect if the broker has no session.
        """
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.shutdown_offset = offset

    def is_shutdown_known(self, broker_id: BrokerId, active: Iterable[BrokerId]) -> bool:
        """Return whether every broker in ``active`` has replayed the entry noted by
        :meth:`note_shutdown_offset`; False if none was noted.
        """
        contact = self._contacts.get(broker_id)
        if contact is None or contact.shutdown_offset is None:
            return False
        return all(self._metadata_offset(other) >= contact.shutdown_offset for other in active)

    def _last_ms(self, broker_id: BrokerId) -> int:
        contact = self._contacts.get(broker_id)
        # A broker that never sent a request counts as silent for longer than all others.
        return -self.session_timeout_ms if contact is None else contact.last_ms

    def _metadata_offset(self, broker_id: BrokerId) -> int:
        contact = self._contacts.get(broker_id)
        return -1 if contact is None else contact.metadata_offset
