"""Random events of a transactional id, with invariants for each transition."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from kraftjbod.broker.transactions.transaction import LAST_CLIENT_EPOCH, LAST_EPOCH, Transaction
from kraftjbod.broker.transactions.transaction_events import (
    AddRequested,
    Answer,
    EndRequested,
    InitRequested,
    Marked,
    Overdue,
    Resumed,
    ResumeLater,
    SendMarkers,
    TransactionAnswer,
    Unloaded,
    Write,
    Written,
)
from kraftjbod.broker.transactions.transaction_records import TransactionMetadata, TransactionState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition

E = ErrorCode
S = TransactionState
A, B = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = 0, 2

FOLLOWS = {
    S.EMPTY: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT},
    S.ONGOING: {S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT},
    S.PREPARE_COMMIT: {S.COMPLETE_COMMIT},
    S.PREPARE_ABORT: {S.COMPLETE_ABORT},
    S.COMPLETE_COMMIT: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT},
    S.COMPLETE_ABORT: {S.EMPTY, S.ONGOING, S.PREPARE_ABORT},
}


class Coordinators:
    """A transactional id at changing coordinators.

    A failing write may be in the log or not.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000
        self.next_id = 100
        start = TransactionMetadata(producer_id=1, producer_epoch=0, timeout_ms=50)
        self.machine = Transaction("x", start)
        #: The transitions in the log, which producers may rely on.
        self.log = [start]
        self.asked: dict[object, Any] = {}
        self.granted: list[tuple[int, int]] = []
        self.marking: set[TopicPartition] = set()
        self.tokens = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self.rng.choice((0, 1, 20))
            self.carry_out(self.event())

    def event(self) -> Any:
        self.tokens += 1
        rng, token = self.rng, self.tokens
        kept = self.machine.metadata
        known = [*self.granted[-4:], (kept.producer_id, kept.producer_epoch)]
        producer_id, epoch = rng.choice(known)
        version = rng.choice((OLD, NEW))
        self.next_id += 1
        fresh = rng.choice((self.next_id, self.next_id, -1))
        match rng.randrange(9):
            case 0:
                expected = rng.choice((None, (producer_id, epoch)))
                event: Any = InitRequested(
                    token=token,
                    timeout_ms=50,
                    version=version,
                    expected=expected,
                    fresh_producer_id=fresh,
                )
            case 1 | 2 | 3:
                event = AddRequested(
                    token=token,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    partitions=frozenset(rng.sample((A, B), rng.randrange(1, 3))),
                    version=version,
                )
            case 4 | 5:
                event = EndRequested(
                    token=token,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    commits=rng.random() < 0.5,
                    version=version,
                    fresh_producer_id=fresh,
                )
            case 6:
                return Overdue(version=version, fresh_producer_id=fresh)
            case 7:
                return self.reload() or Resumed()
            case _:
                some = frozenset(one for one in self.marking if rng.random() < 0.7)
                self.marking -= some
                return Marked(some)
        self.asked[token] = event
        return event

    def reload(self) -> None:
        if self.rng.random() < 0.3:
            self.carry_out(Unloaded())
            self.machine = Transaction("x", self.log[-1])
            self.marking = set()
            if self.rng.random() < 0.2:
                # The epochs are almost used up.
                epoch = self.rng.choice((LAST_CLIENT_EPOCH - 1, LAST_CLIENT_EPOCH))
                self.jump(max(epoch, self.log[-1].producer_epoch))

    def jump(self, epoch: int) -> None:
        kept = self.log[-1]
        if kept.state.is_idle and kept.producer_epoch >= 0:
            self.log.append(replace(kept, producer_epoch=epoch))
            self.machine = Transaction("x", self.log[-1])

    def carry_out(self, event: Any) -> None:
        todo = self.machine.handle(event, self.now_ms)
        while todo:
            match todo.pop(0):
                case Answer(token, answer):
                    self.check_answer(self.asked.pop(token), answer)
                case Write(metadata):
                    assert metadata is not None
                    fails = self.rng.random() < 0.15
                    if not fails or self.rng.random() < 0.5:
                        self.append(metadata)
                    code = E.COORDINATOR_NOT_AVAILABLE if fails else E.NONE
                    todo += self.machine.handle(Written(code), self.now_ms)
                case SendMarkers(metadata):
                    # Markers are sent for transitions in the log only.
                    assert metadata == self.log[-1]
                    self.marking = set(self.machine.unmarked)
                case ResumeLater():
                    pass

    def append(self, metadata: TransactionMetadata) -> None:
        before = self.machine.metadata
        assert metadata.state in FOLLOWS[before.state], (before, metadata)
        if before.state.is_ending and before == self.log[-1]:
            assert not self.machine.unmarked, "the transaction completed before all markers"
            assert before.partitions >= metadata.partitions
        # Neither the producer id nor the epoch decreases.
        if metadata.producer_id == before.producer_id:
            assert metadata.producer_epoch >= before.producer_epoch
        else:
            assert metadata.producer_epoch == 0 and before.producer_epoch >= LAST_CLIENT_EPOCH
        assert 0 <= metadata.producer_epoch <= LAST_EPOCH
        self.log.append(metadata)

    def check_answer(self, event: Any, answer: TransactionAnswer) -> None:
        if answer.code is not E.NONE:
            return
        kept = self.machine.metadata
        assert kept in self.log, "an answered transition is in the log"
        # Later transitions follow it, except for a repeated EndTxn.
        assert kept == self.log[-1] or isinstance(event, EndRequested)
        if answer.producer_id >= 0:
            assert answer.producer_epoch <= LAST_CLIENT_EPOCH
            self.granted.append((answer.producer_id, answer.producer_epoch))
        match event:
            case InitRequested():
                assert (kept.producer_id, kept.producer_epoch) == self.granted[-1]
                assert kept.state is S.EMPTY
            case AddRequested():
                mine = (event.producer_id, event.producer_epoch)
                assert mine == (kept.producer_id, kept.producer_epoch), (
                    "a fenced producer adds no partition"
                )
                assert event.partitions <= kept.partitions and kept.state is S.ONGOING
            case EndRequested():
                decided = kept.state in (S.PREPARE_COMMIT, S.COMPLETE_COMMIT)
                assert event.commits == decided


def test_transaction_keeps_its_invariants_in_random_events() -> None:
    for seed in range(60):
        Coordinators(seed).run(400)
