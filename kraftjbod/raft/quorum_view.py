"""PURE. ``QuorumView``: state of a quorum as one replica knows it, for DescribeQuorum and tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kraftjbod.core.ids import BrokerId
from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.voter_set import ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """State of one replica as this node knows it. Offsets and wall-clock times (ms) are -1 if they
    are not known.
    """

    key: ReplicaKey
    log_end_offset: int = -1
    last_heard_ms: int = -1
    last_caught_up_ms: int = -1
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumView:
    """State of the quorum at one moment. Only the leader knows observers and the log ends of other
    replicas; elsewhere ``observers`` is empty.
    """

    leader: BrokerId | None
    term: int
    high_watermark: int
    """Offset after the last entry that is known to be committed; -1 if none is, and on a leader
    that has committed no entry of its term yet.
    """
    voters: tuple[ReplicaView, ...]
    observers: tuple[ReplicaView, ...]


def view_of(core: RaftCore, *, wall_ms: int, tick_ms: float) -> QuorumView:
    """Return the state of the quorum as ``core`` knows it now.

    :param wall_ms: wall clock time now.
    :param tick_ms: duration of a tick.
    """
    leadership = core.leadership
    voters = core.log.voters

    def views(keys: Iterable[ReplicaKey]) -> tuple[ReplicaView, ...]:
        return tuple(
            _replica(core, key, voters.endpoints_of(key), wall_ms=wall_ms, tick_ms=tick_ms)
            for key in keys
        )

    # A new leader knows the high watermark only once it has committed an entry of its own term.
    knows = leadership is None or leadership.committed_offset >= leadership.start_offset
    observers = [] if leadership is None else [key for key in leadership.peers if key not in voters]
    return QuorumView(
        leader=None if core.leader is None else core.leader.node_id,
        term=core.term,
        high_watermark=core.committed_offset + 1 if knows and core.committed_offset >= 0 else -1,
        voters=views(voters),
        observers=views(observers),
    )


def _replica(
    core: RaftCore, key: ReplicaKey, endpoints: tuple[str, ...], *, wall_ms: int, tick_ms: float
) -> ReplicaView:
    leadership = core.leadership
    if key == core.key:
        leads = leadership is not None
        return ReplicaView(
            key=key,
            log_end_offset=core.last_offset + 1 if leads else core.log.durable_offset + 1,
            last_heard_ms=wall_ms if leads else -1,
            last_caught_up_ms=wall_ms if leads else -1,
            endpoints=endpoints,
        )
    peer = None if leadership is None else leadership.peers.get(key)
    if leadership is None or peer is None:
        return ReplicaView(key=key, endpoints=endpoints)
    now = leadership.now

    def when(tick: int | None) -> int:
        return -1 if tick is None else wall_ms - round((now - tick) * tick_ms)

    return ReplicaView(
        key=key,
        log_end_offset=-1 if peer.end_at_ack is None else peer.durable_offset + 1,
        last_heard_ms=-1 if peer.end_at_ack is None else when(peer.heard_tick),
        last_caught_up_ms=when(peer.caught_up_tick),
        endpoints=endpoints,
    )


def why_lost(core: RaftCore, led_term: int) -> str:
    """Return why this node does not lead the term ``led_term`` any more, as text for messages."""
    if core.term > led_term:
        return "there is a later term"
    if not core.is_voter:
        return "it was removed from the voters"
    return "it resigned, or a majority did not answer"


def seeks_leader(core: RaftCore) -> bool:
    """Return whether no leader is known.

    The caller must not ask only the known voters, because they may have been removed.
    """
    return core.leader is None
