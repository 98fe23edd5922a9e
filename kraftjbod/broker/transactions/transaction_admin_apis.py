"""LOOP. DescribeTransactions and ListTransactions: the transactions that this broker
coordinates."""

from __future__ import annotations

from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.transactions.transaction import Transaction
from kraftjbod.broker.transactions.transaction_coordinator import TransactionCoordinator
from kraftjbod.broker.transactions.transaction_records import TransactionState, by_topic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.text.linear_pattern import LinearPattern
from kraftjbod.protocol.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

Described = DescribeTransactionsResponse.TransactionState
Listed = ListTransactionsResponse.TransactionState


class TransactionAdminApis:
    def __init__(self, *, coordinator: TransactionCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock

    async def describe_transactions(
        self, request: DescribeTransactionsRequest, _context: RequestContext
    ) -> DescribeTransactionsResponse:
        names = dict.fromkeys(request.transactional_ids)
        return DescribeTransactionsResponse(
            transaction_states=[self._describe(name) async for name in in_slices(names)]
        )

    def _describe(self, transactional_id: str) -> Described:
        code, transaction = ErrorCode.NONE, None
        if not transactional_id:
            code = ErrorCode.INVALID_REQUEST
        else:
            try:
                transaction = self._coordinator.describe(transactional_id)
            except OperatingError as e:
                code = e.code
        if transaction is None:
            code = code or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            return Described(error_code=code, transactional_id=transactional_id)
        kept = transaction.metadata
        topics = DescribeTransactionsResponse.TopicData
        # Only partitions that are still part of the transaction: a partition with its marker is
        # not.
        partitions = transaction.unmarked if kept.state.is_ending else kept.partitions
        return Described(
            transactional_id=transactional_id,
            transaction_state=kept.state.title,
            transaction_timeout_ms=kept.timeout_ms,
            transaction_start_time_ms=kept.started_ms,
            producer_id=kept.producer_id,
            producer_epoch=kept.producer_epoch,
            topics=[
                topics(topic=name, partitions=indexes)
                for name, indexes in by_topic(partitions).items()
            ],
        )

    async def list_transactions(
        self, request: ListTransactionsRequest, _context: RequestContext
    ) -> ListTransactionsResponse:
        known = {state.title for state in TransactionState}
        unknown = [name for name in request.state_filters if name not in known]
        try:
            pattern = request.transactional_id_pattern
            wanted = LinearPattern(pattern) if pattern else None
            listed = [
                Listed(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.metadata.producer_id,
                    transaction_state=transaction.state.title,
                )
                async for transaction in in_slices(self._coordinator.all_transactions())
                if self._is_wanted(transaction, request)
                and (wanted is None or wanted.fits(transaction.transactional_id))
            ]
        except OperatingError as e:
            return ListTransactionsResponse(error_code=e.code, unknown_state_filters=unknown)
        return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)

    def _is_wanted(self, transaction: Transaction, request: ListTransactionsRequest) -> bool:
        kept = transaction.metadata
        if request.state_filters and kept.state.title not in request.state_filters:
            return False
        if request.producer_id_filters and kept.producer_id not in request.producer_id_filters:
            return False
        duration_ms = self._clock.wall_ms() - kept.started_ms
        return request.duration_filter < 0 or duration_ms > request.duration_filter
