"""PURE. Verification of transactional producers before their transaction starts here (KIP-890).

If no transaction is open, a transactional batch may be a late one, from a transaction that has
ended. It would keep a transaction open forever. So the partition leader first asks the coordinator.

The answer is only valid for the state of the log when the question was sent. Each question has a
*guard*, an object that has to be current when the answer is used. A marker that is written
meanwhile removes the guard. Guards are compared by object identity.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import BatchHeader


class VerificationGuard:
    """Token for one question to the transaction coordinator: whether the producer has an open
    transaction with this partition.

    It exists from the question until the producer's first batch is appended. ``noted_ms`` is the
    wall-clock time of the question.
    """

    __slots__ = ("is_void", "lowest_sequence", "noted_ms", "producer_epoch", "supports_epoch_bump")

    def __init__(
        self, *, producer_epoch: int, sequence: int, supports_epoch_bump: bool, now_ms: int
    ) -> None:
        self.producer_epoch = producer_epoch
        #: Lowest sequence of the batches that arrived meanwhile: no other may be appended first.
        self.lowest_sequence = sequence
        #: The producer's epoch increases with each transaction (KIP-890, part 2).
        self.supports_epoch_bump = supports_epoch_bump
        self.noted_ms = now_ms
        #: The coordinator's answer is not valid any more.
        self.is_void = False

    def __repr__(self) -> str:
        return f"<VerificationGuard epoch={self.producer_epoch} from={self.lowest_sequence}>"


class NotVerifiedError(OperatingError):
    """The transaction is not verified: ask the coordinator, then append again with ``guard``."""

    def __init__(self, guard: VerificationGuard) -> None:
        super().__init__(
            "the transaction is to be verified first", code=ErrorCode.NOT_ENOUGH_REPLICAS
        )
        self.guard = guard


class ProducerTerms(NamedTuple):
    """Conditions under which the batches of a producer may be appended, besides the remembered
    producer state.

    ``guard`` is the verified guard, None without a verification. ``supports_epoch_bump``: the
    producer's epoch increases with each transaction.
    """

    guard: VerificationGuard | None = None
    is_guarded: bool = True
    """A transaction only starts with a guard."""
    supports_epoch_bump: bool = False
    checks_sequence: bool = True
    """False for batches that a coordinator writes for a producer: they have no sequences."""


ORDINARY_TERMS = ProducerTerms()


class VerificationGuards:
    """Current guards by producer id, limited in number like the remembered producers.

    Arguments ``now_ms`` are wall-clock time.
    """

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        #: In the order of their creation, oldest first. A repeated question does not move a guard.
        self._guards: OrderedDict[int, VerificationGuard] = OrderedDict()

    def __len__(self) -> int:
        return len(self._guards)

    def get(self, producer_id: int) -> VerificationGuard | None:
        """Return the guard of the producer that is valid now; None if there is none."""
        return self._guards.get(producer_id)

    def require(self, header: BatchHeader, terms: ProducerTerms, now_ms: int, most: int) -> None:
        """Require that ``terms`` have the current guard of the producer, whose batch starts a
        transaction.

        :param most: largest number of guards; the oldest are removed.
        :raises NotVerifiedError: the coordinator was not asked, or it was asked for another copy of
            the log: the log has moved between directories or was truncated since. The error has a
            new guard.
        :raises OperatingError: INVALID_TXN_STATE: the transaction ended after the question.
        """
        current = self._guards.get(header.producer_id)
        if terms.guard is None or not (terms.guard is current or terms.guard.is_void):
            raise NotVerifiedError(self._note(current, header, terms, now_ms, most))
        if terms.guard.is_void:
            raise OperatingError(
                f"the batch of producer {header.producer_id} was not part of an ongoing "
                "transaction: that ended while it was verified",
                code=ErrorCode.INVALID_TXN_STATE,
            )

    def _note(
        self,
        current: VerificationGuard | None,
        header: BatchHeader,
        terms: ProducerTerms,
        now_ms: int,
        most: int,
    ) -> VerificationGuard:
        if current is not None and current.producer_epoch == header.producer_epoch:
            current.lowest_sequence = min(current.lowest_sequence, header.base_sequence)
            current.supports_epoch_bump = terms.supports_epoch_bump
            return current
        self._drop(header.producer_id)
        while len(self._guards) >= most:
            self._drop(next(iter(self._guards)))
        guard = VerificationGuard(
            producer_epoch=header.producer_epoch,
            sequence=header.base_sequence,
            supports_epoch_bump=terms.supports_epoch_bump,
            now_ms=now_ms,
        )
        self._guards[header.producer_id] = guard
        return guard

    def _drop(self, producer_id: int) -> None:
        if (guard := self._guards.pop(producer_id, None)) is not None:
            guard.is_void = True

    def data_appended(self, producer_id: int) -> None:
        self._drop(producer_id)

    def marker_appended(self, producer_id: int, producer_epoch: int) -> None:
        """Remove the guard of the producer, unless it belongs to the next transaction.

        A guard belongs to the next transaction if it has the epoch of the marker and epochs
        increase with each transaction.
        """
        guard = self._guards.get(producer_id)
        if guard is None:
            return
        if not (guard.supports_epoch_bump and guard.producer_epoch == producer_epoch):
            self._drop(producer_id)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        for producer_id, guard in list(self._guards.items()):
            if guard.noted_ms < now_ms - expiration_ms:
                self._drop(producer_id)
