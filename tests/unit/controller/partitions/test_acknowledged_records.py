"""Random search for the invariant: an acknowledged record is in the log of every later leader.

It holds while fewer than ``min.insync.replicas`` holders of the record returned unclean since.
Controller and leaders are the real state machines; logs, disks and the network are lists.
Metadata reaches each broker late, requests and responses are delayed or lost, and brokers stop in
every way at any time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kraftjbod.broker.partitions.follower_state import Moments, Speaker
from kraftjbod.broker.partitions.isr_change import IsrChange
from kraftjbod.broker.partitions.partition import NO_EPOCH, Partition, Role, RoleChange
from kraftjbod.core.errors import KraftJbodError, OperatingError
from kraftjbod.core.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    TopicPartition,
)
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.protocol import rpc_messages as m
from tests.each_case import each_case
from tests.golden.transcript import World

Record = tuple[int, int]
"""Leader epoch of the append, and a number."""
BROKERS = (1, 2, 3, 4)
STEPS = 300


class InvariantBrokenError(AssertionError):
    """Prints the events that led to the violation."""


@dataclass
class Node:
    """A broker, its only replica, and its metadata offset."""

    broker_id: BrokerId
    directory: str
    log: list[Record] = field(default_factory=list)
    flushed: int = 0
    incarnation: int = 0
    epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    clean_epoch: int = -1
    is_up: bool = False
    partition: Partition | None = None
    """None while no replica is served."""
    brokers: dict[BrokerId, BrokerRegistration] = field(default_factory=dict)
    metadata_offset: int = -1
    aligned_in: int = -1
    """Leader epoch in which the log was truncated to the leader's."""
    moments: Moments = field(default_factory=Moments)
    session: Speaker = field(default_factory=Speaker)
    """Fetch session with the leader of that epoch."""

    @property
    def leads(self) -> bool:
        return self.partition is not None and self.partition.is_leader


class Life:
    """A cluster of four brokers with one partition, and faults drawn from a seed."""

    def __init__(self, seed: int, *, elr: bool) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.story: list[str] = []
        self.nodes = {b: Node(BrokerId(b), d) for b, d in zip(BROKERS, "abcd", strict=True)}
        self.numbers = iter(range(1_000_000))
        self.inflight: list[tuple[Node, BrokerEpoch, Partition, IsrChange]] = []
        # For each committed record: holders that returned unclean since, and the number that is too
        # many.
        self.lost: dict[Record, set[BrokerId]] = {}
        self.needed: dict[Record, int] = {}
        self.in_sync: set[BrokerId] = set()
        self.run("feature 30")
        if elr:
            self.run("feature 1 elr")
        for node in self.nodes.values():
            self.begin(node, f"register {node.broker_id} dirs={node.directory} incarnation=1")
            self.beat(node)
        replicas = self.rng.choice(["1,2,3", "1,2,3", "1,2", "3"])
        self.run(f"topic t replicas={replicas} min.insync.replicas={self.rng.randint(1, 3)}")
        self.key = self.world.find_partition("t-0")

    # --- the controller ---------------------------------------------------------------------------

    def run(self, line: str) -> str:
        printed = list(self.world.run(line))
        self.story.append(f"> {line}")
        self.story += [f"    {one}" for one in printed]
        self.follow()
        return printed[-1] if printed else ""

    def follow(self) -> None:
        """Remove members that join the in-sync set from ``lost``: they hold all records again."""
        topic = self.world.state.topic("t")
        if topic is None:
            return
        isr = set(self.registration.isr)
        for holders in self.lost.values():
            holders -= isr - self.in_sync
        self.in_sync = isr

    @property
    def registration(self) -> PartitionRegistration:
        found: PartitionRegistration = self.world.state.topic("t").partitions[0]
        return found

    # --- brokers ----------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        if node.is_up:
            return
        line = f"register {node.broker_id} dirs={node.directory} incarnation={node.incarnation + 1}"
        line += f" clean_epochs={node.clean_epoch}"
        if not self.begin(node, line):
            self.run("advance 9001ms")
        elif self.rng.random() < 0.3:  #  The response was lost.
            self.run(line)
            if self.rng.random() < 0.2:
                self.kill(node)

    def begin(self, node: Node, line: str) -> bool:
        answer = self.run(line)
        if answer.startswith("error"):
            return False
        node.incarnation += 1
        node.epoch = BrokerEpoch(int(answer.split()[-1]))
        node.is_up, node.clean_epoch, node.partition = True, -1, None
        return True

    def beat(self, node: Node) -> None:
        if node.is_up and self.world.state.brokers[node.broker_id].epoch == node.epoch:
            self.run(f"heartbeat {node.broker_id}")

    def fence(self, node: Node) -> None:
        """End the broker's session, whether its process lives or not."""
        broker = self.world.state.brokers[node.broker_id]
        if not broker.fenced:
            self.story.append(f"> the session of {node.broker_id} ends")
            self.world.commit(self.world.managers.fence_broker(node.broker_id).records)
            self.follow()

    def learn(self, node: Node) -> None:
        """Deliver the current metadata to the broker."""
        if not node.is_up:
            return
        registration = self.registration
        known, node.brokers = node.brokers, dict(self.world.state.brokers)
        node.metadata_offset = self.world.state.offset
        if node.broker_id not in registration.replicas:
            node.log, node.flushed, node.partition = [], 0, None
            return
        if node.partition is None:
            node.partition = self.new_partition(node)
        partition = node.partition
        values = self.world.state.topic_overrides("t")
        partition.set_min_insync_replicas(int(values["min.insync.replicas"]))
        moment, end = node.moments.next(), len(node.log)
        for broker_id, broker in node.brokers.items():
            if broker_id not in known or known[broker_id].registered_at != broker.registered_at:
                partition.broker_registered(broker_id, moment)
        change = partition.apply(registration, log_end_offset=end, now_ms=0, moment=moment)
        if change is RoleChange.LEADER:
            self.story.append(f"{node.broker_id} leads in {partition.leader_epoch}: {node.log}")
            self.check(node)
        self.commit(node)

    def new_partition(self, node: Node, led_in: LeaderEpoch = NO_EPOCH) -> Partition:
        return Partition(
            topic_partition=TopicPartition("t", 0),
            topic_id=self.key.topic_id,
            broker_id=node.broker_id,
            log_start_offset=0,
            log_end_offset=len(node.log),
            led_in=led_in,
        )

    def append(self, node: Node) -> None:
        if not node.leads:
            return
        assert node.partition is not None
        acks = self.rng.choice([1, -1])
        try:
            node.partition.require_appendable(acks)
        except OperatingError:
            return
        node.log.append((node.partition.leader_epoch, next(self.numbers)))
        node.partition.log_end_moved(len(node.log))
        self.commit(node)

    def fetch(self, node: Node) -> None:
        mine = node.partition
        leader = self.nodes.get(mine.leader) if mine and mine.role is Role.FOLLOWER else None
        if mine is None or leader is None or not leader.leads or not leader.is_up:
            return
        theirs = leader.partition
        assert theirs is not None
        if theirs.leader_epoch != mine.leader_epoch:
            return
        if node.aligned_in != mine.leader_epoch:
            pairs = zip(node.log, leader.log, strict=False)
            end = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            end = min(len(node.log), len(leader.log)) if end is None else end
            del node.log[end:]
            node.flushed = min(node.flushed, end)
            mine.truncated(end)
            node.aligned_in, node.session = mine.leader_epoch, Speaker()
        node.session.spoke()
        try:
            theirs.require_follower(
                node.broker_id,
                broker_epoch=node.epoch,
                expected_epoch=mine.leader_epoch,
                brokers=leader.brokers,
            )
        except KraftJbodError:
            return
        theirs.follower_fetched(
            node.broker_id,
            fetch_offset=len(node.log),
            now_ms=0,
            broker_epoch=node.epoch,
            speaker=node.session,
            moment=leader.moments.next(),
        )
        self.commit(leader)
        node.session.answered_at = leader.moments.next()
        node.log += leader.log[len(node.log) :][: self.rng.randint(0, 3)]
        mine.fetched_from_leader(
            leader_high_watermark=theirs.high_watermark, log_end_offset=len(node.log)
        )
        if theirs.isr_expand_wanted(node.broker_id, leader.brokers):
            self.want(leader, theirs, (*theirs.isr, node.broker_id))

    def shrink(self, node: Node) -> None:
        """Request an in-sync set without followers that lag."""
        partition = node.partition
        if partition is None or not node.leads or partition.pending_isr_change is not None:
            return
        stay = [b for b in partition.isr if b == node.broker_id or self.rng.random() < 0.4]
        if len(stay) < len(partition.isr):
            self.want(node, partition, tuple(stay))

    def want(self, node: Node, partition: Partition, isr: tuple[BrokerId, ...]) -> None:
        change = partition.begin_isr_change(
            isr, own_broker_epoch=node.epoch, metadata_offset=node.metadata_offset
        )
        self.inflight.append((node, node.epoch, partition, change))

    def deliver(self, _: Node) -> None:
        """Deliver an ISR change in any order; its response may be lost."""
        if not self.inflight:
            return
        node, epoch, partition, change = self.inflight.pop(self.rng.randrange(len(self.inflight)))
        requested = change.partition_request(self.key)
        request = m.AlterPartitionRequest(
            broker_id=node.broker_id, broker_epoch=epoch, partitions=(requested,)
        )
        self.story.append(f"> {node.broker_id} wants {change.isr}")
        try:
            response = self.world.ask(request)
        except OperatingError as e:
            self.story.append(f"    {e.message}")
            return
        self.follow()
        assert isinstance(response, m.AlterPartitionResponse)
        answer = response.partitions[0]
        self.story.append(f"    {answer.error_code.name} {self.registration.isr}")
        if node.partition is not partition or not node.is_up:
            return
        if self.rng.random() < 0.3:
            self.inflight.append((node, epoch, partition, change))  #  It is sent again.
        elif answer.error_code:
            partition.isr_change_refused(change, answer.error_code)
        else:
            partition.isr_change_committed(
                change,
                leader_epoch=answer.leader_epoch,
                partition_epoch=answer.partition_epoch,
                isr=answer.isr,
            )
        self.commit(node)

    def calm(self, _: Node) -> None:
        """For a while, all pending work completes."""
        for action in (Life.start, Life.beat, Life.assign, Life.learn, Life.append):
            for node in self.nodes.values():
                action(self, node)
        for _round in range(3):
            for action in (Life.fetch, Life.deliver, Life.learn):
                for node in self.nodes.values():
                    action(self, node)

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        if node.is_up:
            self.story.append(f"{node.broker_id} is killed")
            node.is_up, node.partition = False, None
            self.mark(node)

    def cut_power(self, node: Node) -> None:
        self.kill(node)
        self.lose_tail(node)

    def lose_tail(self, node: Node) -> None:
        end = self.rng.randint(node.flushed, len(node.log))
        del node.log[end:]
        node.flushed = end
        node.clean_epoch = -1
        self.story.append(f"{node.broker_id} has lost all from {end} on")
        self.mark(node)

    def flush(self, node: Node) -> None:
        node.flushed = len(node.log)

    def stop(self, node: Node) -> None:
        if node.is_up and self.world.state.brokers[node.broker_id].epoch == node.epoch:
            self.run(f"heartbeat {node.broker_id} want_shut_down")
            node.is_up, node.partition = False, None
            node.flushed, node.clean_epoch = len(node.log), node.epoch

    def blink(self, node: Node) -> None:
        """The directory fails unnoticed, and returns with a shorter log."""
        broker = self.world.state.brokers[node.broker_id]
        if not node.is_up or broker.epoch != node.epoch:
            return
        self.lose_tail(node)
        led_in = node.partition.leader_epoch if node.partition and node.leads else NO_EPOCH
        name = f"dirs={node.directory} incarnation={node.incarnation} clean="
        self.run(f"register {node.broker_id} {name}")
        node.partition, node.aligned_in = self.new_partition(node, led_in), -1
        if self.rng.random() < 0.7:
            self.learn(node)

    def fail(self, node: Node) -> None:
        """The directory fails, is reported, and returns with a shorter log."""
        broker = self.world.state.brokers[node.broker_id]
        if node.is_up and broker.epoch == node.epoch:
            node.partition = None
            self.run(f"heartbeat {node.broker_id} offline={node.directory}")
            self.blink(node)

    def lose(self, node: Node) -> None:
        """Report the replica as lost, and recreate it once no in-sync set counts it."""
        registration = self.registration
        broker = self.world.state.brokers[node.broker_id]
        if not node.is_up or broker.epoch != node.epoch:
            return
        if node.broker_id not in registration.replicas:
            return
        if registration.holders == (node.broker_id,):
            return
        node.log, node.flushed, node.partition, node.aligned_in = [], 0, None, -1
        self.mark(node)
        self.run(f"assign {node.broker_id} t-0=lost")
        if node.broker_id not in self.registration.holders:
            self.run(f"assign {node.broker_id} t-0={node.directory}")

    def configure(self, _: Node) -> None:
        value = self.rng.randint(1, 3)
        self.run(f"configure topic:t set:min.insync.replicas={value}")
        # A lower value weakens the guarantee, also for existing records.
        self.needed = {record: min(value, needed) for record, needed in self.needed.items()}
        self.void()

    def move(self, _: Node) -> None:
        if not self.registration.is_reassigning:
            count = len(self.registration.replicas)
            target = ",".join(map(str, self.rng.sample(BROKERS, count)))
            self.run(f"reassign t-0 replicas={target}")

    def assign(self, node: Node) -> None:
        found = self.registration.directory_of(node.broker_id)
        broker = self.world.state.brokers[node.broker_id]
        if found is None or not found.is_reserved or broker.epoch != node.epoch:
            return
        if node.is_up and (node.broker_id not in self.registration.holders or node.log):
            self.run(f"assign {node.broker_id} t-0={node.directory}")

    def fail_over(self, _: Node) -> None:
        self.run("take_leadership")
        self.run(self.rng.choice(["preferred", "unclean"]))

    # --- the invariant ----------------------------------------------------------------------------

    def mark(self, node: Node) -> None:
        for holders in self.lost.values():
            holders.add(node.broker_id)
        self.void()

    def void(self) -> None:
        """Drop records that have lost more holders than the guarantee covers."""
        for record in [r for r, holders in self.lost.items() if len(holders) >= self.needed[r]]:
            del self.lost[record]

    def commit(self, node: Node) -> None:
        """Records below the high watermark are acknowledged."""
        partition = node.partition
        if partition is None or not node.leads:
            return
        for record in node.log[: partition.high_watermark]:
            if record not in self.needed:
                minimum = min(partition._min_insync_replicas, partition._replication_factor)
                self.needed[record] = minimum
                self.lost[record] = {
                    b for b in partition.isr if record not in self.nodes[b].log
                } | {b for b in partition.isr if not self.nodes[b].is_up}
                self.story.append(f"{record} is committed by {partition.isr}")
        self.void()

    def check(self, node: Node) -> None:
        held = set(node.log)
        for record, holders in self.lost.items():
            if record not in held:
                raise InvariantBrokenError(
                    "\n".join(self.story[-120:])
                    + f"\n{record} is missing at leader {node.broker_id}; unclean since: {holders}"
                )


ACTIONS: dict[Callable[[Life, Node], None], int] = {
    Life.append: 12,
    Life.fetch: 30,
    Life.learn: 20,
    Life.beat: 8,
    Life.deliver: 8,
    Life.start: 4,
    Life.assign: 3,
    Life.calm: 40,
    Life.flush: 2,
    Life.shrink: 2,
    Life.fence: 2,
    Life.kill: 1,
    Life.cut_power: 1,
    Life.stop: 1,
    Life.blink: 1,
    Life.fail: 1,
    Life.lose: 1,
    Life.configure: 1,
    Life.move: 1,
    Life.fail_over: 1,
}


# Metadata reaches brokers rarely, with many changes meanwhile.
HASTY: dict[Callable[[Life, Node], None], int] = {
    **ACTIONS,
    Life.learn: 6,
    Life.calm: 4,
    Life.start: 6,
    Life.deliver: 20,
    Life.shrink: 12,
    Life.configure: 6,
    Life.fence: 6,
    Life.move: 4,
}


def live(seed: int, *, elr: bool) -> int:
    """Return the number of acknowledged records that no leader lacks."""
    life = Life(seed, elr=elr)
    weights = ACTIONS if seed % 2 else HASTY
    actions = life.rng.choices(list(weights), list(weights.values()), k=STEPS)
    for action in actions:
        action(life, life.rng.choice(list(life.nodes.values())))
        life.world.managers.index.check_invariants(life.world.state)
    return len(life.lost)


@each_case("seed", range(60))
def test_leader_elected_with_elr_has_all_acknowledged_records(seed: int) -> None:
    live(seed, elr=True)


def test_search_without_elr_finds_a_loss_of_acknowledged_records() -> None:
    """Without eligible leader replicas, one unclean return is enough to lose records (KIP-966)."""
    with pytest.raises(InvariantBrokenError):
        for seed in range(300):
            live(seed, elr=False)


def test_isr_response_before_raised_min_insync_replicas_commits_nothing() -> None:
    """Too rare for the search: the leader counts with 1, and the removed member is eligible by
    2."""
    life = next(
        life for life in (Life(seed, elr=True) for seed in range(50)) if life.in_sync == {1, 2}
    )
    leader, follower = life.nodes[1], life.nodes[2]
    life.run("configure topic:t set:min.insync.replicas=1")
    for _ in range(2):
        for node in life.nodes.values():
            life.learn(node)
        life.append(leader)
        life.fetch(follower)
    assert leader.partition is not None
    life.want(leader, leader.partition, (leader.broker_id,))
    life.run("configure topic:t set:min.insync.replicas=2")
    life.rng = random.Random(3)  #  The response arrives.
    life.deliver(leader)
    assert life.registration.elr == (follower.broker_id,)
    life.append(leader)
    life.fence(leader)
    life.learn(follower)
    assert follower.leads


def test_search_with_elr_acknowledges_more_than_100_records() -> None:
    assert sum(live(seed, elr=True) for seed in range(20)) > 100
