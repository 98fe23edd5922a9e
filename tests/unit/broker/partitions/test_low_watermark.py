"""``low_watermark_of``: DeleteRecords waits for all replicas that may serve the records again."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.broker.partitions.follower_state import UNKNOWN_OFFSET
from kraftjbod.broker.partitions.low_watermark import low_watermark_of
from kraftjbod.core.ids import BrokerEpoch
from kraftjbod.core.log_dir_state import LogDirState
from tests.unit.broker.partitions.test_partition import (
    EPOCH,
    ME,
    THREE,
    TWO,
    broker,
    leader,
    started,
    state,
)


def test_low_watermark_is_the_least_log_start_of_live_replicas() -> None:
    p = leader(isr=(1, 3))
    brokers = {b: broker(b) for b in (ME, TWO, THREE)}
    assert (
        low_watermark_of(p, 7, brokers) == UNKNOWN_OFFSET
    )  # No follower has reported its log start yet.
    started(p, TWO, 4)
    started(p, THREE, 9)
    assert low_watermark_of(p, 7, brokers) == 4
    for gone in (
        broker(TWO, fenced=True),
        broker(TWO, dir_online=False),
        broker(TWO, impaired=LogDirState.STALLED),
    ):
        assert low_watermark_of(p, 7, {**brokers, TWO: gone}) == 7
    assert low_watermark_of(p, 7, {THREE: broker(THREE)}) == 7
    # A broker in controlled shutdown still leads and follows.
    assert low_watermark_of(p, 7, {**brokers, TWO: broker(TWO, leaving=True)}) == 4


def test_low_watermark_is_unknown_while_a_replica_that_may_lead_is_unavailable() -> None:
    """An eligible replica with an older log start could lead after DeleteRecords was
    acknowledged."""
    p = leader(isr=(1, 2))
    brokers = {TWO: broker(TWO), THREE: broker(THREE, fenced=True)}
    started(p, TWO, 7)
    assert low_watermark_of(p, 7, brokers) == 7
    for away in (
        broker(TWO, fenced=True, epoch=BrokerEpoch(8)),
        broker(TWO, dir_online=False, epoch=BrokerEpoch(8)),
        broker(TWO, impaired=LogDirState.SATURATED, epoch=BrokerEpoch(8)),
    ):
        assert low_watermark_of(p, 7, {**brokers, TWO: away}) == UNKNOWN_OFFSET, (
            "in sync and unavailable"
        )
    assert low_watermark_of(p, 7, {THREE: brokers[THREE]}) == UNKNOWN_OFFSET, "in sync and unknown"
    p.apply(
        replace(state(isr=(1, 2), partition_epoch=11), elr=(THREE,)), log_end_offset=100, now_ms=0
    )
    assert low_watermark_of(p, 7, brokers) == UNKNOWN_OFFSET, "eligible and unavailable"
    p.apply(state(isr=(1, 2), partition_epoch=12), log_end_offset=100, now_ms=0)
    assert low_watermark_of(p, 7, brokers) == 7
    p.begin_isr_change((ME, TWO, THREE), own_broker_epoch=EPOCH)
    assert low_watermark_of(p, 7, brokers) == UNKNOWN_OFFSET, "in sync once the change is accepted"
