"""PURE. Producers that are to be verified before their transaction begins here (KIP-890).

A transactional batch where no transaction is open may be a late one, from a transaction that has
ended long since: it would stay open for ever. So its partition's leader asks the coordinator
first. What is asked for one state of the log must not be believed in another: the *guard* that
the question begins with has to be still the one when the answer is used. A marker that is written
meanwhile takes it away.

A guard is known by being that object.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import BatchHeader


class VerificationGuard:
    """Of one producer, from the question to its first batch."""

    __slots__ = ("is_void", "lowest_sequence", "noted_ms", "producer_epoch", "supports_epoch_bump")

    def __init__(
        self, *, producer_epoch: int, sequence: int, supports_epoch_bump: bool, now_ms: int
    ) -> None:
        self.producer_epoch = producer_epoch
        #: Of all that came while it was asked; what has a higher one has not to come first.
        self.lowest_sequence = sequence
        #: The producer's epoch grows with each transaction (KIP-890, its second part).
        self.supports_epoch_bump = supports_epoch_bump
        self.noted_ms = now_ms
        #: What the coordinator says is not true any more.
        self.is_void = False

    def __repr__(self) -> str:
        return f"<VerificationGuard epoch={self.producer_epoch} from={self.lowest_sequence}>"


class NotVerifiedError(OperatingError):
    """The coordinator is to be asked; with ``guard`` the batch may be tried again then."""

    def __init__(self, guard: VerificationGuard) -> None:
        super().__init__(
            "the transaction is to be verified first", code=ErrorCode.NOT_ENOUGH_REPLICAS
        )
        self.guard = guard


class ProducerTerms(NamedTuple):
    """By which terms a batch is appended, besides what is known of its producer."""

    guard: VerificationGuard | None = None
    is_guarded: bool = True
    """No transaction begins without a guard."""
    supports_epoch_bump: bool = False
    checks_sequence: bool = True
    """Not where a coordinator writes for a producer: it counts nothing."""


ORDINARY_TERMS = ProducerTerms()


class VerificationGuards:
    """By producer id, as many as there may be producers."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        #: Who was noted least recently comes first.
        self._guards: OrderedDict[int, VerificationGuard] = OrderedDict()

    def __len__(self) -> int:
        return len(self._guards)

    def get(self, producer_id: int) -> VerificationGuard | None:
        """What is being asked of the producer, or was and has not been used."""
        return self._guards.get(producer_id)

    def require(self, header: BatchHeader, terms: ProducerTerms, now_ms: int, most: int) -> None:
        """The batch would begin a transaction.

        :raises NotVerifiedError: the coordinator has not been asked, or for another copy of the
            log, which has moved between directories or was truncated since.
        :raises OperatingError: INVALID_TXN_STATE: it was, and the transaction has ended since.
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
        """It ends all questions but that for the transaction that the marker's epoch is for."""
        guard = self._guards.get(producer_id)
        if guard is None:
            return
        if not (guard.supports_epoch_bump and guard.producer_epoch == producer_epoch):
            self._drop(producer_id)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        for producer_id, guard in list(self._guards.items()):
            if guard.noted_ms < now_ms - expiration_ms:
                self._drop(producer_id)
