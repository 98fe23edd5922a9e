"""Three brokers and a controller as state machines, and disks that lose unflushed bytes.

There is one partition with three replicas and ``min.insync.replicas`` 2. Disks fail, lose a tail
and come back, with or without a reachable controller. Requests and responses are late or lost. A
fetch that a follower sent before its disk failed may arrive long after. A disk fails only if the
loss is covered: another replica is in sync, all in-sync replicas have their disks, and no earlier
loss is unreported.

Invariant: an in-sync replica has all acknowledged records at their offsets. After a while without
faults, all replicas are in sync and equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    Action,
    AnnounceChanges,
    BecameReady,
    DirectoryAttached,
    DirectoryFailed,
    Event,
    HeartbeatAnswered,
    HeartbeatFailed,
    MetadataReplayed,
    RegistrationAnswered,
    RegistrationFailed,
    SendHeartbeat,
    SendRegistration,
    Started,
    WokeUp,
)
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import (
    BrokerIdentity,
    LifecycleState,
    LifecycleTimes,
)
from kraftjbod.broker.partitions.follower_state import Moments, Speaker
from kraftjbod.broker.partitions.isr_change import IsrChange
from kraftjbod.broker.partitions.partition import NO_EPOCH, Partition, Role, RoleChange
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicPartition, Uuid
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol.rpc_messages import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ListenerInfo,
)
from tests.each_case import each_case
from tests.golden.transcript import CLUSTER_ID, World, directory

SEEDS = 40
STEPS = 1_200
#: Rounds with each kind of step, until no work is left.
CALM_ROUNDS = 60
IDS = tuple(map(BrokerId, (1, 2, 3)))
_OTHER_DIRS = {1: "x", 2: "y", 3: "z"}
_DIRS = {1: "a", 2: "b", 3: "c"}
Record = tuple[int, int]
"""Leader epoch and record number."""


class Loop:
    """A follower's fetch loop with its session at the leader."""

    def __init__(self, leader: BrokerId, leader_epoch: int) -> None:
        self.leader, self.leader_epoch = leader, leader_epoch
        self.speaker = Speaker()
        self.next_sent = self.next_read = 0
        self.is_waiting = False


@dataclass
class Fetch:
    """A fetch in flight, which may arrive after its follower's copy has been lost."""

    follower: BrokerId
    broker_epoch: int
    loop: Loop
    number: int
    log: list[Record]


@dataclass
class Answer:
    loop: Loop
    follower: BrokerId
    keep: int
    records: list[Record] = field(default_factory=list)


class Node:
    """One broker: its state machines, and its copy of the partition."""

    def __init__(self, sim: Sim, broker_id: BrokerId) -> None:
        self.sim, self.broker_id = sim, broker_id
        self.dir = directory(_DIRS[broker_id])
        self.lifecycle = LifecycleState(
            identity=BrokerIdentity(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                incarnation_id=Uuid(bytes([broker_id]) * 16),
                listeners=(ListenerInfo(name="PLAINTEXT", host="h", port=9092),),
                features=SUPPORTED_FEATURES,
            ),
            online_dirs=[self.dir, directory(_OTHER_DIRS[broker_id])],
            times=LifecycleTimes(),
            backoff=ExponentialBackoff(initial_ms=100, max_ms=1_000, random_unit=lambda: 0.5),
        )
        self.rpc: BrokerRegistrationRequest | BrokerHeartbeatRequest | None = None
        self.moments = Moments()
        self.state, self.replayed = MetadataState(), 0
        self.log: list[Record] = []
        self.partition: Partition | None = None
        self.led_in = NO_EPOCH
        self.is_returning = False
        #: The copy has lost its tail, and the controller has not received the report.
        self.is_unreported = False
        self.loop: Loop | None = None
        self.isr_request: IsrChange | None = None

    def handle(self, event: Event) -> None:
        for action in self.lifecycle.handle(event, 0):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case SendRegistration(request) | SendHeartbeat(request):
                self.rpc = request
            case AnnounceChanges(changes) if self.dir in changes.attached:
                self.is_returning = False
                self.open()
            case _:
                pass

    @property
    def registration(self) -> PartitionRegistration | None:
        return self.state.partition(self.sim.key) if self.sim.key else None

    @property
    def leads(self) -> bool:
        return self.partition is not None and self.partition.is_leader

    # --- the copy --------------------------------------------------------------------------------

    def open(self) -> None:
        self.partition = Partition(
            topic_partition=TopicPartition("t", 0),
            topic_id=self.sim.key.topic_id,
            broker_id=self.broker_id,
            log_start_offset=0,
            log_end_offset=len(self.log),
            min_insync_replicas=2,
            led_in=self.led_in,
        )
        self.take_role()

    def take_role(self) -> None:
        partition, registration = self.partition, self.registration
        if partition is None or registration is None:
            return
        change = partition.apply(
            registration,
            log_end_offset=len(self.log),
            now_ms=0,
            moment=self.moments.next(),
        )
        if change in (RoleChange.LEADER, RoleChange.FOLLOWER):
            self.loop = None
        if partition.role is Role.FOLLOWER and partition.leader != NO_LEADER and not self.loop:
            self.loop = Loop(partition.leader, partition.leader_epoch)

    def die(self, keep: int) -> None:
        assert self.partition is not None
        if self.partition.is_leader:
            self.led_in = self.partition.leader_epoch
        self.partition, self.loop = None, None
        del self.log[keep:]
        self.is_unreported = True
        self.handle(
            DirectoryFailed(
                directory_id=self.dir, leads=lambda: False, has_unreported_replicas=lambda: False
            )
        )

    def replay_one(self) -> bool:
        if self.replayed == len(self.sim.world.entries):
            return False
        delta = MetadataDelta()
        self.state.replay(
            self.sim.world.entries[self.replayed], offset=self.replayed, epoch=1, delta=delta
        )
        self.replayed += 1
        if self.sim.key in delta.partitions:
            self.take_role()
        if self.partition is not None:
            for broker_id in delta.registered:
                self.partition.broker_registered(broker_id, self.moments.next())
        self.handle(MetadataReplayed(offset=self.state.offset))
        return True


class Sim:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.key: Any = None
        self.world = World()
        self.nodes = {broker_id: Node(self, broker_id) for broker_id in IDS}
        self.fetches: list[Fetch] = []
        self.answers: list[Answer] = []
        self.acked: list[Record] = []
        self.made = 0
        self.has_controller = True
        self.log_lines: list[str] = []
        for node in self.nodes.values():
            node.handle(Started())
            for event in (None, BecameReady()):
                if event:
                    node.handle(event)
                for _ in range(4):
                    self.ask(node, arrives=True, returns=True)
                    while node.replay_one():
                        pass
        list(self.world.run("topic t replicas=1,2,3 min.insync.replicas=2"))
        ((self.key, _),) = self.world.state.partitions()
        for broker_id, name in _DIRS.items():
            list(self.world.run(f"assign {broker_id} t-0={name}"))
        for node in self.nodes.values():
            while node.replay_one():
                pass
            node.open()

    @property
    def truth(self) -> PartitionRegistration:
        found: PartitionRegistration = self.world.state.partition(self.key)
        return found

    # --- steps -----------------------------------------------------------------------------------

    def ask(self, node: Node, *, arrives: bool, returns: bool) -> None:
        """Deliver the lifecycle's request and response, or lose either."""
        request, node.rpc = node.rpc, None
        if request is None:
            node.handle(WokeUp())
            return
        failure = {"code": ErrorCode.REQUEST_TIMED_OUT, "message": ""}
        is_heartbeat = isinstance(request, BrokerHeartbeatRequest)
        response: Any = None
        if arrives:
            try:
                response = self.world.ask(request)
            except OperatingError as e:
                failure = {"code": e.code, "message": e.message}
                returns = True
            if is_heartbeat and node.dir in request.offline_log_dirs:
                node.is_unreported = False
        if response is None or not returns:
            node.handle(
                HeartbeatFailed(**failure) if is_heartbeat else RegistrationFailed(**failure)
            )
        elif is_heartbeat:
            node.handle(HeartbeatAnswered(response=response))
        else:
            node.handle(
                RegistrationAnswered(
                    broker_epoch=response.broker_epoch, metadata_offset=response.metadata_offset
                )
            )

    def send_fetch(self, node: Node) -> None:
        loop = node.loop
        if loop is None or node.partition is None:
            return
        if loop.is_waiting:
            if self.random.random() < 0.1:
                # The follower gives up and restarts its loop; the earlier fetch may still arrive.
                node.loop = Loop(loop.leader, loop.leader_epoch)
            return
        loop.is_waiting = True
        self.fetches.append(
            Fetch(node.broker_id, node.lifecycle.broker_epoch, loop, loop.next_sent, list(node.log))
        )
        loop.next_sent += 1

    def read_fetch(self, fetch: Fetch) -> None:
        self.fetches.remove(fetch)
        leader, loop = self.nodes[fetch.loop.leader], fetch.loop
        answer = Answer(loop, fetch.follower, len(fetch.log))
        self.answers.append(answer)
        partition = leader.partition
        if fetch.number != loop.next_read:
            return
        loop.next_read += 1
        loop.speaker.spoke()
        if partition is None:
            return
        try:
            partition.require_follower(
                fetch.follower,
                broker_epoch=fetch.broker_epoch,  # type: ignore[arg-type]
                expected_epoch=loop.leader_epoch,
                brokers=leader.state.brokers,
            )
        except OperatingError:
            return
        shared = _shared(leader.log, fetch.log)
        if shared < len(fetch.log):
            answer.keep = shared
            return
        partition.follower_fetched(
            fetch.follower,
            fetch_offset=len(fetch.log),
            now_ms=0,
            broker_epoch=fetch.broker_epoch,  # type: ignore[arg-type]
            speaker=loop.speaker,
            moment=leader.moments.next(),
        )
        self.acknowledge(leader)
        if partition.isr_expand_wanted(fetch.follower, leader.state.brokers):
            self.want(leader, (*partition.isr, fetch.follower))
        answer.records = leader.log[shared : shared + self.random.randint(1, 4)]
        loop.speaker.answered_at = leader.moments.next()

    def read_answer(self, answer: Answer) -> None:
        self.answers.remove(answer)
        node = self.nodes[answer.follower]
        if node.loop is not answer.loop or node.partition is None:
            return
        answer.loop.is_waiting = False
        if answer.keep < len(node.log):
            del node.log[answer.keep :]
        node.log += answer.records
        node.partition.log_end_moved(len(node.log))

    def append(self, node: Node) -> None:
        if not node.leads:
            return
        assert node.partition is not None
        self.made += 1
        node.log.append((node.partition.leader_epoch, self.made))
        node.partition.log_end_moved(len(node.log))
        self.acknowledge(node)

    def want(self, leader: Node, isr: tuple[BrokerId, ...]) -> None:
        assert leader.partition is not None
        if leader.partition.pending_isr_change is None:
            leader.isr_request = leader.partition.begin_isr_change(
                isr,
                own_broker_epoch=leader.lifecycle.broker_epoch,
                metadata_offset=leader.state.offset,
            )

    def check_isr(self, leader: Node) -> None:
        """Check the in-sync set as the broker does periodically."""
        partition = leader.partition
        if partition is None or not partition.is_leader:
            return
        for member in IDS:
            if partition.isr_expand_wanted(member, leader.state.brokers):
                self.want(leader, (*partition.isr, member))
        others = [member for member in partition.isr if member != leader.broker_id]
        if others and self.random.random() < 0.2:
            slow = self.random.choice(others)
            self.want(leader, tuple(m for m in partition.isr if m != slow))

    def deliver_isr_request(self, leader: Node, *, returns: bool) -> None:
        change, partition = leader.isr_request, leader.partition
        if change is None:
            return
        try:
            response: Any = self.world.ask(
                AlterPartitionRequest(
                    broker_id=leader.broker_id,
                    broker_epoch=leader.lifecycle.broker_epoch,
                    partitions=(change.partition_request(self.key),),
                )
            )
        except OperatingError:
            return
        if not returns:
            return
        leader.isr_request = None
        (altered,) = response.partitions
        if partition is None or partition.pending_isr_change is not change:
            return
        if altered.error_code is ErrorCode.NONE:
            partition.isr_change_committed(
                change,
                leader_epoch=altered.leader_epoch,
                partition_epoch=altered.partition_epoch,
                isr=altered.isr,
            )
        else:
            partition.isr_change_refused(change, altered.error_code)
        self.acknowledge(leader)

    def acknowledge(self, leader: Node) -> None:
        """Count the records below the high watermark as acknowledged."""
        if not leader.leads:
            return
        assert leader.partition is not None
        committed = leader.log[: leader.partition.high_watermark]
        shared = _shared(self.acked, committed)
        assert shared == min(len(self.acked), len(committed)), self.report("other records", leader)
        if len(committed) > len(self.acked):
            self.acked = committed

    # --- faults ----------------------------------------------------------------------------------

    def may_die(self, node: Node) -> bool:
        if node.partition is None or any(other.is_unreported for other in self.nodes.values()):
            return False
        if node.isr_request is not None:
            return False  # The change may leave the leader as the only one with the records.
        isr = self.truth.isr
        others = [self.nodes[member] for member in isr if member != node.broker_id]
        if node.broker_id not in isr:
            return True
        return bool(others) and all(other.partition is not None for other in others)

    def holds_all(self, node: Node) -> bool:
        return node.log[: len(self.acked)] == self.acked

    # --- runs ------------------------------------------------------------------------------------

    def step(self) -> None:
        roll = self.random.random
        node = self.nodes[self.random.choice(IDS)]
        kinds: list[tuple[int, Callable[[], object]]] = [
            (20, lambda: self.append(node)),
            (14, lambda: self.send_fetch(node)),
            (14, lambda: self.fetches and self.read_fetch(self.random.choice(self.fetches))),
            (14, lambda: self.answers and self.read_answer(self.random.choice(self.answers))),
            (
                14,
                lambda: self.ask(
                    node, arrives=self.has_controller and roll() < 0.9, returns=roll() < 0.8
                ),
            ),
            (14, node.replay_one),
            (6, lambda: self.check_isr(node)),
            (
                6,
                lambda: (
                    self.has_controller and self.deliver_isr_request(node, returns=roll() < 0.8)
                ),
            ),
            (2, lambda: self.may_die(node) and self.kill(node)),
            (6, lambda: self.bring_back(node)),
            (1, self.toggle_controller),
            (4, self.find_controller),
        ]
        weights, steps = zip(*kinds, strict=True)
        self.random.choices(steps, weights)[0]()
        self.check()

    def check(self) -> None:
        """Check that in-sync replicas without unreported loss have all acknowledged records."""
        for member in self.truth.isr:
            node = self.nodes[member]
            if node.partition is not None and not node.is_unreported:
                assert self.holds_all(node), self.report("in sync and short", node)

    def kill(self, node: Node) -> None:
        keep = self.random.randint(0, len(node.log))
        truth = self.truth
        self.log_lines.append(
            f"disk of {node.broker_id} dies: {len(node.log)} -> {keep}, isr {truth.isr}, leader "
            f"{truth.leader}, epochs {truth.leader_epoch}/{truth.partition_epoch}, acknowledged "
            f"{len(self.acked)}"
        )
        node.die(keep)

    def bring_back(self, node: Node) -> None:
        if node.partition is None and not node.is_returning:
            self.log_lines.append(f"disk of {node.broker_id} is back")
            node.is_returning = True
            node.handle(DirectoryAttached(directory_id=node.dir, path="/d"))

    def toggle_controller(self) -> None:
        self.has_controller = not self.has_controller

    def find_controller(self) -> None:
        self.has_controller = True

    def run_without_faults(self) -> None:
        self.has_controller = True
        for _ in range(CALM_ROUNDS):
            for node in self.nodes.values():
                self.bring_back(node)
                self.ask(node, arrives=True, returns=True)
                while node.replay_one():
                    pass
                self.deliver_isr_request(node, returns=True)
                self.expand_isr(node)
                self.send_fetch(node)
            for fetch in list(self.fetches):
                self.read_fetch(fetch)
            for answer in list(self.answers):
                self.read_answer(answer)

    def expand_isr(self, node: Node) -> None:
        if node.leads and node.partition is not None:
            for member in IDS:
                if node.partition.isr_expand_wanted(member, node.state.brokers):
                    self.want(node, (*node.partition.isr, member))

    def report(self, what: str, node: Node | None = None) -> str:
        logs = {n.broker_id: (n.log[-5:], len(n.log), n.partition) for n in self.nodes.values()}
        return (
            f"{what} {node and node.broker_id}; {len(self.acked)} acknowledged {self.acked[-3:]}; "
            f"{self.truth}; {logs}\n" + "\n".join(self.log_lines[-12:])
        )


def _shared(one: list[Record], other: list[Record]) -> int:
    """Return the length of the common prefix of both logs."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


@each_case("seed", range(SEEDS))
def test_acknowledged_records_survive_lost_tails_of_followers_and_leaders(seed: int) -> None:
    sim = Sim(seed)
    for _ in range(STEPS):
        sim.step()
    sim.run_without_faults()
    assert set(sim.truth.isr) == set(IDS), sim.report("not all in sync")
    leader = sim.nodes[sim.truth.leader]
    assert sim.holds_all(leader), sim.report("lost")
    assert all(node.log == leader.log for node in sim.nodes.values()), sim.report("not equal")


def test_lost_tail_simulation_covers_failures_with_and_without_a_controller() -> None:
    """Disks fail and return on leaders, and while no controller is reachable."""
    deaths = acked = unheard = 0
    for seed in range(10):
        sim = Sim(seed)
        for _ in range(STEPS):
            sim.step()
            unheard += not sim.has_controller and any(n.is_unreported for n in sim.nodes.values())
        deaths += sum("dies" in line for line in sim.log_lines)
        acked += len(sim.acked)
    assert (deaths > 10, acked > 100, unheard > 10) == (True, True, True)
