"""LOOP. ``BrokerConnector``: opens the connections from this broker to other brokers.

Brokers use the listener that ``inter.broker.listener.name`` names. A failed login there, such as
one with a credential of SCRAM that was deleted, is a failed connection, which the callers repeat.

A host that lost power does not close its connections, so a request would wait for its full timeout.
The metadata shows earlier that the broker is fenced; then its connections are closed, and attempts
to connect to it end.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import (
    ConnectionLostError,
    OperatingError,
    RemoteProtocolError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.kafka_client import KafkaConnection, Login

_log = get_logger()


class _Peer(NamedTuple):
    """One incarnation of a broker, identified by its broker epoch."""

    broker_id: BrokerId
    epoch: BrokerEpoch


class BrokerConnector:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cache: MetadataCache,
        listener_name: str,
        dialer: Dialer = PLAIN,
        login: Login | None = None,
    ) -> None:
        """:param listener_name: the listener of other brokers that is used.
        :param dialer: opens the connections.
        :param login: authenticates this broker on each new connection.
        """
        self._broker_id = broker_id
        self._cache = cache
        self._listener_name = listener_name
        self._dialer = dialer
        self._login = login
        self._connections: dict[KafkaConnection, _Peer] = {}
        #: Reported reasons of failed logins, by broker.
        self._login_reports: dict[BrokerId, str] = {}
        #: Attempts to connect that are in progress. A time of 0 ends one.
        self._attempts: dict[asyncio.Timeout, _Peer] = {}

    async def connect(self, peer: BrokerId, *, purpose: str, timeout_ms: int) -> KafkaConnection:
        """Open a dedicated connection to ``peer`` with the client id ``broker-<id>-<purpose>``.

        :param timeout_ms: time limit of each step: connecting, each request of the handshake and
            the login.
        :raises ConnectionLostError: the metadata has no endpoint of the peer, it is unreachable, it
            is fenced meanwhile, or the login failed.
        :raises RequestTimedOutError: the peer accepts the connection but does not respond.
        """
        endpoint = self._cache.endpoint(peer, self._listener_name)
        if endpoint is None:
            raise ConnectionLostError(f"broker {peer} is not in the metadata")
        incarnation = _Peer(peer, self._cache.state.brokers[peer].epoch)
        attempt = asyncio.timeout(None)
        self._attempts[attempt] = incarnation
        try:
            async with attempt:
                connection = await KafkaConnection.connect(
                    endpoint.host,
                    endpoint.port,
                    client_id=f"broker-{self._broker_id}-{purpose}",
                    timeout_ms=timeout_ms,
                    dialer=self._dialer,
                    login=self._login,
                )
        except TimeoutError as e:
            raise ConnectionLostError(f"broker {peer} was fenced or restarted") from e
        except (ConnectionLostError, RequestTimedOutError):
            raise
        except (OperatingError, RemoteProtocolError) as e:
            self._report_failed_login(peer, str(e))
            raise ConnectionLostError(f"broker {peer} refused the connection: {e}") from e
        finally:
            self._attempts.pop(attempt, None)
        self._login_reports.pop(peer, None)
        self._connections = {one: led for one, led in self._connections.items() if one.is_open}
        self._connections[connection] = incarnation
        self.hang_up()
        return connection

    def _report_failed_login(self, peer: BrokerId, reason: str) -> None:
        """Log a failed login, once until a login at that broker succeeds or fails otherwise."""
        if self._login_reports.get(peer) != reason:
            self._login_reports[peer] = reason
            _log.warning(
                "broker_login_failed", broker=peer, listener=self._listener_name, reason=reason
            )

    def hang_up(self) -> None:
        """Abort connections, and connection attempts, to brokers that the metadata shows as fenced,
        gone or in another epoch.

        Closing in order would first send the pending bytes, which a vanished host never reads.
        """
        for connection, peer in list(self._connections.items()):
            if self._is_gone(peer):
                del self._connections[connection]
                connection.abort(f"broker {peer.broker_id} was fenced or restarted")
        for attempt, peer in list(self._attempts.items()):
            if self._is_gone(peer):
                del self._attempts[attempt]
                attempt.reschedule(0)  # At once.

    def _is_gone(self, peer: _Peer) -> bool:
        known = self._cache.state.brokers.get(peer.broker_id)
        return known is None or known.fenced or known.epoch != peer.epoch
