"""``Transaction``: the answers of one transactional id in each state, as in Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.transactions.transaction import LAST_CLIENT_EPOCH, LAST_EPOCH, Transaction
from kraftjbod.broker.transactions.transaction_events import (
    AddRequested,
    Answer,
    EndRequested,
    Expired,
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


class Walk:
    """A state machine whose writes succeed immediately, unless a test holds them."""

    def __init__(self, **kept: Any) -> None:
        metadata = TransactionMetadata(**{"producer_id": 7, "timeout_ms": 60_000, **kept})
        self.machine = Transaction("x", metadata)
        self.now_ms = 1_000
        self.log: list[TransactionMetadata | None] = []
        self.sent: list[TransactionMetadata] = []
        self.answers: list[TransactionAnswer] = []
        self.is_held = False
        self.code = E.NONE

    def do(self, event: Any) -> TransactionAnswer | None:
        """Handle the event and return the answer to its request, if any."""
        before = len(self.answers)
        todo = self.machine.handle(event, self.now_ms)
        while todo:
            match todo.pop(0):
                case Answer(_, answer):
                    self.answers.append(answer)
                case Write(metadata):
                    self.log.append(metadata)
                    if not self.is_held:
                        todo += self.machine.handle(Written(self.code), self.now_ms)
                case SendMarkers(metadata):
                    self.sent.append(metadata)
                case ResumeLater():
                    pass
        return self.answers[-1] if len(self.answers) > before else None

    def init(self, version: int = OLD, **more: Any) -> Any:
        return self.do(InitRequested(token=1, timeout_ms=60_000, version=version, **more))

    def add(self, *partitions: TopicPartition, version: int = OLD, **producer: int) -> Any:
        return self.do(
            AddRequested(
                token=1,
                partitions=frozenset(partitions),
                version=version,
                **self._producer(producer),
            )
        )

    def end(self, *, commits: bool, version: int = OLD, fresh: int = -1, **producer: int) -> Any:
        return self.do(
            EndRequested(
                token=1,
                commits=commits,
                version=version,
                fresh_producer_id=fresh,
                **self._producer(producer),
            )
        )

    def _producer(self, producer: dict[str, int]) -> dict[str, int]:
        kept = self.machine.metadata
        return {"producer_id": kept.producer_id, "producer_epoch": kept.producer_epoch, **producer}

    @property
    def place(self) -> tuple[TransactionState, int, int]:
        kept = self.machine.metadata
        return kept.state, kept.producer_id, kept.producer_epoch


def granted(producer_id: int, epoch: int) -> TransactionAnswer:
    return TransactionAnswer(producer_id=producer_id, producer_epoch=epoch)


def refused(code: ErrorCode) -> TransactionAnswer:
    return TransactionAnswer(code=code)


@pytest.mark.parametrize("commits", [True, False])
def test_transaction_begins_adds_partitions_and_ends_after_its_markers(commits: bool) -> None:
    walk = Walk()
    assert walk.init() == granted(7, 0)
    assert walk.add(A) == TransactionAnswer() and walk.add(A, B) == TransactionAnswer()
    assert walk.add(B) == TransactionAnswer() and len(walk.log) == 3, (
        "known partitions are not written again"
    )
    assert walk.machine.metadata.partitions == {A, B} and walk.machine.metadata.started_ms == 1_000
    assert walk.end(commits=commits) == TransactionAnswer()
    prepared = S.PREPARE_COMMIT if commits else S.PREPARE_ABORT
    assert walk.place == (prepared, 7, 0) and [one.state for one in walk.sent] == [prepared]
    for again in (commits, not commits):
        assert walk.end(commits=again) == refused(E.CONCURRENT_TRANSACTIONS)
    assert walk.add(A) == walk.init() == refused(E.CONCURRENT_TRANSACTIONS)
    walk.do(Marked(frozenset({A})))
    assert walk.machine.unmarked == {B} and walk.place[0] is prepared
    walk.do(Marked(frozenset({B})))
    completed = S.COMPLETE_COMMIT if commits else S.COMPLETE_ABORT
    assert walk.place == (completed, 7, 0) and walk.machine.metadata.partitions == frozenset()
    assert walk.end(commits=commits) == TransactionAnswer()
    assert walk.end(commits=not commits) == refused(E.INVALID_TXN_STATE)
    assert walk.add(B) == TransactionAnswer() and walk.machine.metadata.partitions == {B}


@pytest.mark.parametrize("state", [s for s in S if s < S.DEAD and not s.is_ending])
@pytest.mark.parametrize("version", [OLD, NEW])
def test_request_with_another_producer_id_or_epoch_is_rejected(
    state: TransactionState, version: int
) -> None:
    walk = Walk(state=state, producer_epoch=5, previous_producer_id=3, partitions=frozenset({A}))
    for asked in (
        walk.add(A, producer_id=8),
        walk.end(commits=True, version=version, producer_id=8),
    ):
        assert asked == refused(E.INVALID_PRODUCER_ID_MAPPING)
    for epoch in (3, 6):
        assert walk.add(A, producer_epoch=epoch) == refused(E.PRODUCER_FENCED)
        ended = walk.end(commits=True, version=version, producer_epoch=epoch)
        assert ended == refused(E.PRODUCER_FENCED)
        assert walk.machine.verify(7, epoch, frozenset({A})) == {A: E.PRODUCER_FENCED}
    assert walk.machine.verify(8, 5, frozenset({A})) == {A: E.INVALID_PRODUCER_ID_MAPPING}
    assert walk.log == []


def test_version_2_end_of_any_epoch_during_an_ending_returns_concurrent_transactions() -> None:
    """As in Kafka. franz-go aborts a transaction that it has not begun, in the epoch that it
    just received. An answer as fenced would end its producer."""
    walk = Walk(state=S.ONGOING, producer_epoch=5, partitions=frozenset({A}))
    assert walk.end(commits=True, version=NEW) == granted(7, 6)
    busy = refused(E.CONCURRENT_TRANSACTIONS)
    for epoch in (4, 5, 6, 7):
        for commits in (True, False):
            assert walk.end(commits=commits, version=NEW, producer_epoch=epoch) == busy
        assert walk.add(B, producer_epoch=epoch) == busy
        assert walk.init(expected=(7, epoch)) == busy
    # In an older version only the producer of the current epoch must retry.
    assert walk.end(commits=True, producer_epoch=5) == refused(E.PRODUCER_FENCED)
    assert walk.machine.verify(7, 5, frozenset({A})) == {A: E.PRODUCER_FENCED}
    walk.do(Marked(frozenset({A})))
    assert walk.end(commits=False, version=NEW, producer_epoch=6) == granted(7, 7)
    assert walk.place == (S.COMPLETE_ABORT, 7, 7)


def test_verify_accepts_only_partitions_of_the_open_transaction() -> None:
    walk = Walk(state=S.ONGOING, producer_epoch=5, partitions=frozenset({A}))
    both = frozenset({A, B})
    assert walk.machine.verify(7, 5, both) == {A: E.NONE, B: E.TRANSACTION_ABORTABLE}
    walk.end(commits=True)
    assert set(walk.machine.verify(7, 5, both).values()) == {E.CONCURRENT_TRANSACTIONS}


#: State, whether the request is repeated (an epoch behind), whether to commit, the answer. None
#: means that the transaction ends.
NEW_ENDS = [
    (S.ONGOING, False, True, None),
    (S.ONGOING, False, False, None),
    (S.ONGOING, True, True, E.PRODUCER_FENCED),
    (S.EMPTY, False, True, E.INVALID_TXN_STATE),
    (S.EMPTY, False, False, None),
    (S.PREPARE_COMMIT, False, True, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_COMMIT, True, True, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_COMMIT, True, False, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, True, False, E.CONCURRENT_TRANSACTIONS),
    (S.PREPARE_ABORT, True, True, E.CONCURRENT_TRANSACTIONS),
    (S.COMPLETE_COMMIT, True, True, E.NONE),
    (S.COMPLETE_COMMIT, False, True, E.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, True, False, E.INVALID_TXN_STATE),
    (S.COMPLETE_COMMIT, False, False, None),
    (S.COMPLETE_ABORT, True, False, E.NONE),
    (S.COMPLETE_ABORT, False, False, None),
    (S.COMPLETE_ABORT, True, True, E.INVALID_TXN_STATE),
    (S.COMPLETE_ABORT, False, True, E.INVALID_TXN_STATE),
]


@pytest.mark.parametrize(("state", "again", "commits", "code"), NEW_ENDS)
def test_end_transaction_in_version_2_increases_the_epoch(
    state: TransactionState, again: bool, commits: bool, code: ErrorCode | None
) -> None:
    has_some = state is S.ONGOING or state.is_ending
    walk = Walk(state=state, producer_epoch=5, partitions=frozenset({A} if has_some else ()))
    ended = walk.end(commits=commits, version=NEW, producer_epoch=4 if again else 5)
    if code is None:
        assert ended == granted(7, 6)
        assert walk.log[0] is not None and walk.log[0].client_version == NEW
        # Without partitions the transaction is complete immediately.
        assert walk.place[0].is_ending == has_some and walk.place[2] == 6
        assert walk.machine.metadata.started_ms >= -1 + (not has_some)
    else:
        assert ended == (granted(7, 5) if code is E.NONE else refused(code))
        assert walk.log == []


@pytest.mark.parametrize("epoch", [LAST_CLIENT_EPOCH, LAST_EPOCH])
def test_end_transaction_with_the_last_epoch_returns_a_new_producer_id(epoch: int) -> None:
    walk = Walk(state=S.ONGOING, producer_epoch=epoch, partitions=frozenset({A}))
    assert walk.end(commits=True, version=NEW) == refused(E.COORDINATOR_LOAD_IN_PROGRESS)
    assert walk.end(commits=True, version=NEW, fresh=9) == granted(9, 0)
    assert walk.place == (S.PREPARE_COMMIT, 7, LAST_EPOCH), "markers have the old producer id"
    assert walk.add(B, producer_id=9, producer_epoch=0).code is E.CONCURRENT_TRANSACTIONS
    walk.do(Marked(frozenset({A})))
    assert walk.place == (S.COMPLETE_COMMIT, 9, 0)
    again = walk.end(commits=True, version=NEW, producer_id=7, producer_epoch=LAST_CLIENT_EPOCH)
    assert again == granted(9, 0)
    assert walk.add(B, version=NEW) == TransactionAnswer()


def test_init_producer_id_fences_the_old_producer_and_succeeds_after_the_abort() -> None:
    for version, fresh in ((OLD, -1), (NEW, 9)):
        walk = Walk(state=S.ONGOING, producer_epoch=LAST_CLIENT_EPOCH, partitions=frozenset({A}))
        asked = walk.init(version=version, fresh_producer_id=fresh)
        assert asked == refused(E.CONCURRENT_TRANSACTIONS)
        assert walk.place == (S.PREPARE_ABORT, 7, LAST_EPOCH)
        walk.do(Marked(frozenset({A})))
        assert walk.place == (S.COMPLETE_ABORT, *((7, LAST_EPOCH) if version == OLD else (9, 0)))
        assert walk.init(fresh_producer_id=11) == (
            granted(11, 0) if version == OLD else granted(9, 1)
        )
        # The former producer cannot continue.
        assert walk.init(expected=(7, 3)).code is E.PRODUCER_FENCED


def test_init_producer_id_with_expected_epoch_continues_the_producer() -> None:
    """KIP-360: the request names the former epoch, and is repeated if the response was lost."""
    walk = Walk(state=S.COMPLETE_ABORT, producer_epoch=5)
    assert walk.init(expected=(7, 5)) == granted(7, 6)
    assert walk.init(expected=(7, 5)) == granted(7, 6)
    assert walk.init(expected=(7, 4)) == walk.init(expected=(8, 6)) == refused(E.PRODUCER_FENCED)
    assert walk.init() == granted(7, 7)
    assert walk.init(expected=(7, 6)) == refused(E.PRODUCER_FENCED), (
        "another producer was initialized"
    )
    walk = Walk(state=S.EMPTY, producer_epoch=LAST_CLIENT_EPOCH)
    assert walk.init(expected=(7, LAST_CLIENT_EPOCH)).code is E.COORDINATOR_LOAD_IN_PROGRESS
    had = (7, LAST_CLIENT_EPOCH)
    assert walk.init(expected=had, fresh_producer_id=9) == granted(9, 0)
    assert walk.init(expected=had, fresh_producer_id=10) == granted(9, 0)
    assert walk.machine.metadata.previous_producer_id == 7


def test_overdue_transaction_is_aborted_and_unused_id_expires() -> None:
    walk = Walk(state=S.ONGOING, producer_epoch=5, started_ms=1_000, partitions=frozenset({A}))
    walk.now_ms += 60_000
    walk.do(Overdue(version=OLD))
    assert walk.log == []
    walk.now_ms += 1
    walk.do(Overdue(version=OLD))
    assert walk.place == (S.PREPARE_ABORT, 7, 6) and walk.sent
    walk.do(Expired(1))
    walk.do(Marked(frozenset({A})))
    walk.now_ms += 10
    walk.do(Expired(11))
    assert not walk.machine.is_void
    walk.do(Expired(10))
    assert walk.machine.is_void and walk.log[-1] is None


@pytest.mark.parametrize("by_another", [False, True])
def test_aborted_producer_may_continue_until_another_one_is_initialized(
    by_another: bool,
) -> None:
    """As in Kafka, where each end increases the epoch (KIP-360)."""
    walk = Walk(state=S.ONGOING, producer_epoch=5, started_ms=1_000, partitions=frozenset({A}))
    walk.now_ms += 60_001
    if by_another:
        assert walk.init(version=NEW) == refused(E.CONCURRENT_TRANSACTIONS)
    else:
        walk.do(Overdue(version=NEW))
    walk.do(Marked(frozenset({A})))
    assert walk.place == (S.COMPLETE_ABORT, 7, 6)
    assert walk.init(expected=(7, 4)) == refused(E.PRODUCER_FENCED)
    assert walk.init(expected=(7, 5)) == granted(7, 6)
    assert walk.init() == granted(7, 7), "the other producer retries"
    assert walk.init(expected=(7, 5)) == walk.init(expected=(7, 6)) == refused(E.PRODUCER_FENCED)


def test_failed_write_reverts_the_transition() -> None:
    walk = Walk()
    walk.code = E.COORDINATOR_NOT_AVAILABLE
    assert walk.init() == refused(walk.code) and walk.machine.is_void
    walk = Walk(state=S.ONGOING, producer_epoch=5, partitions=frozenset({A}))
    walk.code = E.COORDINATOR_NOT_AVAILABLE
    for commits in (True, False):
        assert walk.end(commits=commits, version=NEW) == refused(walk.code)
        assert walk.place == (S.ONGOING, 7, 5) and not walk.sent
    walk.code = E.NONE
    walk.end(commits=True)
    walk.code = E.COORDINATOR_NOT_AVAILABLE
    walk.do(Marked(frozenset({A})))
    assert walk.place[0] is S.PREPARE_COMMIT
    walk.code = E.NONE
    walk.do(Resumed())
    assert walk.place[0] is S.COMPLETE_COMMIT


def test_requests_during_a_write_return_concurrent_transactions() -> None:
    walk = Walk(state=S.ONGOING, producer_epoch=5, started_ms=0, partitions=frozenset({A}))
    walk.is_held = True
    assert walk.end(commits=True) is None
    for asked in (
        walk.init(),
        walk.add(B),
        walk.end(commits=True),
        walk.end(commits=True, version=NEW),
    ):
        assert asked == refused(E.CONCURRENT_TRANSACTIONS)
    walk.now_ms = 10**9
    walk.do(Overdue(version=NEW))
    walk.do(Expired(0))
    assert len(walk.log) == 1
    assert walk.do(Unloaded()) == refused(E.NOT_COORDINATOR)


def test_loaded_transaction_resumes_its_ending() -> None:
    kept = {"producer_epoch": 5, "partitions": frozenset({A})}
    walk = Walk(state=S.PREPARE_COMMIT, **kept)
    walk.do(Resumed())
    assert walk.sent == [walk.machine.metadata] and walk.machine.unmarked == {A}
    walk = Walk(state=S.ONGOING, **kept)
    walk.do(Resumed())
    assert not walk.sent
    walk = Walk(state=S.PREPARE_ABORT, producer_epoch=5)
    walk.do(Resumed())
    assert walk.place[0] is S.COMPLETE_ABORT
