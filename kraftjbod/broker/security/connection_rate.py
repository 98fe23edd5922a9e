"""PURE. How many connections an address may open per second on this broker (KIP-612)."""

from __future__ import annotations

from typing import Final

from kraftjbod.core.client_quota import CONNECTION_CREATION_RATE, address_entity
from kraftjbod.core.loop.client_rates import ClientRates

#: The longest delay of a connection, as with Kafka.
MAX_DELAY_MS: Final = 1_000


def connection_delay_ms(rates: ClientRates, host: str) -> int:
    """Count a new connection; return 0 if it is accepted.

    Otherwise return the ms after which it is to be closed. It is not counted then, so that an
    address that tries too often still gets its rate.

    :param host: numeric address of the client.
    """
    if not rates.is_set(CONNECTION_CREATION_RATE):
        return 0
    client = address_entity(host)
    wait_ms = rates.spend(CONNECTION_CREATION_RATE, client, 1)
    if wait_ms:
        rates.spend(CONNECTION_CREATION_RATE, client, -1)
    return min(wait_ms, MAX_DELAY_MS)
