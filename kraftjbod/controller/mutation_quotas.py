"""PURE. ``MutationQuotas``: partitions that clients may create and delete per second (KIP-599).

* The active controller counts them, in memory: after a failover each client has a full burst again.
* A request costs the partitions that it creates or deletes. While a client waits, a strict request
  is refused topic by topic; other requests are accepted, and their client waits afterwards.
* Requests of nodes themselves, and those of tools at a controller, have no quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kraftjbod.core.client_quota import CONTROLLER_MUTATION_RATE, QuotaEntity, client_entity
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.client_rates import ClientRates
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import MutatingClient


class MutationCharge:
    """Charges the partitions of one request to its client's quota (KIP-599).

    ``throttle_time_ms`` is the time for which the client has to wait afterwards; 0 without a quota.
    """

    def __init__(
        self, rates: ClientRates | None = None, client: MutatingClient | None = None
    ) -> None:
        self._rates = None if client is None else rates
        self._client: QuotaEntity = ()
        self._is_strict = False
        if client is not None:
            self._client = client_entity(client.user, client.client_id)
            self._is_strict = client.is_strict
        self.throttle_time_ms = 0

    def charge(self, partitions: int) -> None:
        """Count partitions that are to be created or deleted.

        :raises OperatingError: THROTTLING_QUOTA_EXCEEDED, if the request is strict and its client
            has to wait. Nothing is counted then.
        """
        if self._rates is None:
            return
        if self._is_strict:
            wait_ms = self._rates.wait_ms(CONTROLLER_MUTATION_RATE, self._client)
            if wait_ms:
                self.throttle_time_ms = max(self.throttle_time_ms, wait_ms)
                raise OperatingError(
                    "The throttling quota has been exceeded.",
                    code=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                )
        wait_ms = self._rates.spend(CONTROLLER_MUTATION_RATE, self._client, partitions)
        if not self._is_strict:
            self.throttle_time_ms = max(self.throttle_time_ms, wait_ms)


#: Of requests without a quota.
FREE: Final = MutationCharge()


class MutationQuotas:
    """The present balance of each client's quota of created and deleted partitions (KIP-599), in
    memory. :meth:`charge_of` starts the charge of a request.
    """

    def __init__(self, state: MetadataState) -> None:
        self._now_ms = 0
        self._rates = ClientRates(lambda: state.client_quotas, lambda: self._now_ms)

    def refresh(self, changed: Iterable[QuotaEntity]) -> None:
        """Use the present quotas of these entities."""
        self._rates.refresh(changed)

    def charge_of(self, client: MutatingClient | None, now_ms: int) -> MutationCharge:
        """Return a new charge for a request.

        :param client: the request's client; None if it has no quota.
        """
        self._now_ms = now_ms
        if client is None or not self._rates.is_set(CONTROLLER_MUTATION_RATE):
            return FREE
        return MutationCharge(self._rates, client)
