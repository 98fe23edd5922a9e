"""Random histories of a cluster, checked against invariants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kraftjbod.controller.partitions.acceptance import Acceptance, acceptance_of
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest
from tests.golden.transcript import World

BROKERS = st.integers(1, 4)
DIRS = {1: "a,b,c", 2: "d,e", 3: "f,g", 4: "h"}
PARTITIONS = st.integers(0, 3)
IMPAIRED = ["saturated", "stalled"]


class Lives(RuleBasedStateMachine):
    """Brokers register, lose disks, fall silent and leave; topics are created, deleted and
    reassigned.

    A twin receives the same requests and must give the same responses, although its managers are
    rebuilt from its state at times."""

    def __init__(self) -> None:
        super().__init__()
        self.world, self.twin = World(), World()
        self.before: dict[Any, Any] = {}
        self.incarnations = dict.fromkeys(DIRS, 0)

    def run(self, line: str) -> None:
        reported = list(self.world.run(line))
        assert not any("UNKNOWN_SERVER_ERROR" in one for one in reported)
        # A controller with a longer history keeps partitions in another order; no record depends on
        # it.
        assert sorted(self.twin.run(line)) == sorted(reported)

    @rule(part_size=st.integers(1, 20))
    def another_leads(self, part_size: int) -> None:
        """Rebuild the twin's managers, as if another controller took over the log."""
        self.twin.rebuild_from_snapshot(part_size)
        self.run("take_leadership")

    @initialize(level=st.sampled_from(["17", "30", "1 elr"]))
    def begin(self, level: str) -> None:
        self.run("feature 30" if "elr" in level else f"feature {level}")
        self.run(f"feature {level}")

    @initialize()
    def serve(self) -> None:
        """Start with partitions that have records to lose."""
        for broker, dirs in DIRS.items():
            self.run(f"register {broker} dirs={dirs} incarnation=0")
            self.run(f"heartbeat {broker}")
        self.run("topic t replicas=1,2,3|2,3,4|4,1,2")
        for partition, members in enumerate(("1,2,3", "2,3,4", "4,1,2")):
            for broker in members.split(","):
                self.run(f"assign {broker} t-{partition}={DIRS[int(broker)][0]}")

    @rule(elr=st.integers(0, 1))
    def change_feature(self, elr: int) -> None:
        self.run(f"feature {elr} elr {'' if elr else 'down=safe'}")
        if not elr:
            self.before.clear()  #  Eligible replicas are in sync again.

    @rule(broker=BROKERS, clean=st.sampled_from("abcdefgh") | st.just(""), again=st.booleans())
    def register(self, broker: int, clean: str, again: bool) -> None:
        self.incarnations[broker] += not again
        name = f"incarnation={self.incarnations[broker]}"
        self.run(f"register {broker} dirs={DIRS[broker]} clean={clean} {name}")

    @rule(topic=st.booleans(), value=st.integers(1, 3))
    def change_min_isr(self, topic: bool, value: int) -> None:
        name = "topic:t" if topic else "broker:"
        self.run(f"configure {name} set:min.insync.replicas={value}")

    @rule(broker=BROKERS, request=st.sampled_from(["", "", "", "want_fence", "want_shut_down"]))
    def heartbeat(self, broker: int, request: str) -> None:
        registration = self.world.state.brokers.get(broker)
        lost = len(registration.offline_log_dirs) if registration else 0
        self.run(f"heartbeat {broker} {request} offline={','.join(DIRS[broker].split(',')[:lost])}")

    @rule(broker=BROKERS, count=st.integers(1, 3))
    def lose_dirs(self, broker: int, count: int) -> None:
        self.run(f"heartbeat {broker} offline={','.join(DIRS[broker].split(',')[:count])}")

    @rule(kind=st.sampled_from(["preferred", "unclean"]), partition=PARTITIONS)
    def elect(self, kind: str, partition: int) -> None:
        self.run(f"elect {kind} t-{partition}")

    @rule(broker=BROKERS)
    def unregister(self, broker: int) -> None:
        self.run(f"unregister {broker}")

    @rule(broker=BROKERS, impaired=st.sets(st.integers(0, 2)), state=st.sampled_from(IMPAIRED))
    def impair_dirs(self, broker: int, impaired: set[int], state: str) -> None:
        registration = self.world.state.brokers.get(broker)
        lost = len(registration.offline_log_dirs) if registration else 0
        names = DIRS[broker].split(",")
        reported = ",".join(
            f"{names[number]}:{state}" for number in impaired if number < len(names)
        )
        self.run(f"heartbeat {broker} offline={','.join(names[:lost])} impaired={reported}")

    @rule(seconds=st.integers(1, 10))
    def time_passes(self, seconds: int) -> None:
        self.run(f"advance {seconds * 1000}ms")
        self.run("sweep")

    @rule(replicas=st.permutations([1, 2, 3, 4]), factor=st.integers(1, 3), unclean=st.booleans())
    def create(self, replicas: list[int], factor: int, unclean: bool) -> None:
        chosen = ",".join(map(str, replicas[:factor]))
        other = ",".join(map(str, reversed(replicas[:factor])))
        option = "unclean.leader.election.enable=true" if unclean else ""
        self.run(f"topic t replicas={chosen}|{other} {option}")

    @rule()
    def delete(self) -> None:
        self.run("delete t")
        self.before.clear()

    @rule(broker=BROKERS, partition=PARTITIONS, name=st.sampled_from("abcdefghx") | st.just("lost"))
    def assign(self, broker: int, partition: int, name: str) -> None:
        if broker in self.world.state.brokers:
            self.run(f"assign {broker} t-{partition}={name}")

    @rule(partition=PARTITIONS, isr=st.lists(BROKERS, min_size=1, max_size=4, unique=True))
    def alter(self, partition: int, isr: list[int]) -> None:
        topic = self.world.state.topic("t")
        found = topic.partitions.get(partition) if topic else None
        if found is not None and found.has_leader:
            members = ",".join(map(str, {found.leader: 0, **dict.fromkeys(isr)}))
            self.run(f"alter {found.leader} t-{partition} isr={members}")

    @rule(
        partition=PARTITIONS,
        wanted=st.lists(BROKERS, min_size=1, max_size=4, unique=True),
        directory=st.sampled_from(["any", "/a", "/b", "/e", "/f", "/h"]),
    )
    def reassign(self, partition: int, wanted: list[int], directory: str) -> None:
        dirs = ",".join([directory] + ["any"] * (len(wanted) - 1))
        self.run(f"reassign t-{partition} replicas={','.join(map(str, wanted))} dirs={dirs}")

    @rule(partition=PARTITIONS)
    def cancel(self, partition: int) -> None:
        self.run(f"cancel t-{partition}")

    @rule(partition=PARTITIONS)
    def all_come_in_sync(self, partition: int) -> None:
        """Request the in-sync set of a leader whose followers have all caught up."""
        topic = self.world.state.topic("t")
        found = topic.partitions.get(partition) if topic else None
        if found is not None and found.has_leader:
            eligible = [
                replica
                for replica in found.replicas
                if self.may_be_in_sync(replica, found.directory_of(replica))
            ]
            members = ",".join(map(str, eligible))
            self.run(f"alter {found.leader} t-{partition} isr={members}")
            if eligible == list(found.replicas):
                assert not topic.partitions[partition].is_reassigning, "all replicas are in sync"

    @rule(count=st.integers(3, 4))
    def grow(self, count: int) -> None:
        self.run(f"grow t {count}")

    @rule(verb=st.sampled_from(["preferred", "unclean", "take_leadership"]))
    def go_round(self, verb: str) -> None:
        self.run(verb)

    def may_be_in_sync(self, broker: BrokerId, directory_id: DirectoryId) -> bool:
        found = acceptance_of(self.world.state.brokers.get(broker), directory_id)
        return found is Acceptance.ACCEPTABLE

    @invariant()
    def leaders_can_lead_and_in_sync_sets_are_sound(self) -> None:
        state = self.world.state
        for key, partition in state.partitions():
            assert partition.isr or not partition.has_leader, (key, partition)
            assert partition.isr or state.has_elr, (key, partition)
            assert set(partition.elr) <= set(partition.replicas) - set(partition.isr)
            assert not partition.last_known_elr or not partition.isr, (key, partition)
            assert set(partition.holders) <= set(partition.replicas), "holders are replicas"
            assert partition.holders, (key, partition)
            assert not partition.elr or len(partition.isr) < partition.min_isr(
                self.world.managers.rules_of(state.topics[key.topic_id].name).min_isr
            ), (key, partition)
            assert set(partition.isr) <= set(partition.replicas)
            assert len(set(partition.isr)) == len(partition.isr)
            assert len(partition.directories) == len(partition.replicas)
            assert len(set(partition.replicas)) == len(partition.replicas)
            added, removed = set(partition.adding_replicas), set(partition.removing_replicas)
            assert added | removed <= set(partition.replicas), (key, partition)
            assert not added & removed, (key, partition)
            assert set(partition.replicas) - added, "a cancel leaves at least one replica"
            assert set(partition.replicas) - removed, "a completion leaves at least one replica"
            if partition.has_leader:
                assert partition.leader in partition.isr
                for member in partition.isr:
                    assert state.brokers[member].is_active, (key, partition)
                    assert state.is_replica_online(member, partition.directory_of(member))
            earlier = self.before.get(key)
            if earlier is not None:
                assert partition.leader_epoch >= earlier.leader_epoch
                assert partition.partition_epoch >= earlier.partition_epoch
            self.before[key] = partition

    @invariant()
    def the_indexes_follow(self) -> None:
        self.world.managers.index.check_invariants(self.world.state)

    def teardown(self) -> None:
        """A replay of all entries, and a snapshot, yield the same state."""
        state, replayed = self.world.state, MetadataState()
        for offset, records in enumerate(self.world.entries):
            replayed.replay(records, offset=offset, epoch=1, delta=MetadataDelta())
        assert vars(replayed) == vars(state)
        restored = MetadataState()
        records = tuple(state.snapshot_records())
        restored.replay(records, offset=state.offset, epoch=1, delta=MetadataDelta())
        assert vars(restored) == vars(state)
        assert vars(self.twin.state) == vars(state)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_decide_refuses_request_that_no_manager_handles() -> None:
    request = FetchMetadataRequest(
        broker_id=BrokerId(1), fetch_offset=0, max_wait_ms=0, max_bytes=1
    )
    with pytest.raises(OperatingError) as refused:
        World().managers.decide(request, now_ms=0)
    assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_bootstrap_of_nonempty_log_writes_no_records() -> None:
    assert not World().managers.bootstrap({"metadata.version": 17}).records


def test_broker_counts_returns_active_fenced_and_stopping_brokers() -> None:
    world = World()
    for line in ("up 1 dirs=a", "up 2 dirs=b", "register 3 dirs=c", "topic t replicas=2,1"):
        list(world.run(line))
    list(world.run("heartbeat 2 want_shut_down"))
    assert world.managers.broker_counts() == (1, 1, 1)


def test_elected_from_elr_counts_elections_before_replay() -> None:
    world = World(MetadataVersion.IV_4_3_IV0)
    for line in ("feature 1 elr", "up 1 dirs=a", "up 2 dirs=b", "topic t replicas=1,2"):
        list(world.run(line))
    for line in ("heartbeat 2 want_fence", "heartbeat 1 want_fence"):
        list(world.run(line))
    heartbeat = m.BrokerHeartbeatRequest(
        broker_id=BrokerId(2),
        broker_epoch=world.state.brokers[BrokerId(2)].epoch,
        current_metadata_offset=world.state.offset,
        want_fence=False,
        want_shut_down=False,
    )
    records = world.managers.decide(heartbeat, now_ms=0).records
    assert world.managers.elected_from_elr(records) == 1
    world.commit(records)
    assert world.managers.elected_from_elr(records) == 0
