"""Acceptance of replicas as a table, and random histories of replicas with their records."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kraftjbod.controller.partitions.acceptance import (
    Acceptance,
    acceptance_of,
    acceptance_of_directory,
    changed_directories,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.metadata.records import ImpairedLogDir
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from tests.golden.transcript import World, directory, directory_name

ACCEPTABLE, LAST_RESORT, REFUSED = (
    Acceptance.ACCEPTABLE,
    Acceptance.LAST_RESORT,
    Acceptance.REFUSED,
)


def _broker(
    online: str = "ab", impaired: str = "", offline: str = "", *, fenced: bool = False
) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=BrokerId(1),
        epoch=BrokerEpoch(1),
        incarnation_id=Uuid(bytes(16)),
        listeners=(),
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        log_dirs=tuple(map(directory, online)),
        offline_log_dirs=tuple(map(directory, offline)),
        impaired_log_dirs=tuple(
            ImpairedLogDir(directory(name), LogDirState.STALLED) for name in impaired
        ),
    )


@pytest.mark.parametrize(
    ("broker", "name", "expected"),
    [
        (_broker(), "a", ACCEPTABLE),
        (_broker(impaired="a"), "a", LAST_RESORT),
        (_broker(impaired="a"), "b", ACCEPTABLE),
        (_broker("b", offline="a"), "a", REFUSED),
        (_broker(impaired="a"), "-", ACCEPTABLE),
        (_broker(impaired="ab"), "-", LAST_RESORT),
        (_broker(impaired="ab"), "migrating", LAST_RESORT),
        (_broker(impaired="ab"), "lost", REFUSED),
        (_broker(impaired="a", fenced=True), "a", REFUSED),
        (None, "a", REFUSED),
    ],
)
def test_acceptance_depends_on_directory_state_and_broker(
    broker: BrokerRegistration | None, name: str, expected: Acceptance
) -> None:
    assert acceptance_of(broker, directory(name)) is expected


def test_acceptance_of_directory_ignores_fencing() -> None:
    assert acceptance_of_directory(_broker(fenced=True), directory("a")) is ACCEPTABLE


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (_broker(), _broker(fenced=True), ""),
        (_broker(), _broker(impaired="a"), "a"),
        (_broker(impaired="a"), _broker(impaired="ab"), "- migrating b"),
        (_broker(impaired="a"), _broker("b", offline="a"), "a"),
        (_broker("b", offline="a"), _broker("ab"), "a"),
        (_broker("b"), _broker("b", impaired="b"), "- migrating b"),
        (_broker("ab", impaired="b"), _broker("b", impaired="b"), "- migrating a"),
    ],
)
def test_changed_directories_returns_directories_whose_acceptance_changed(
    before: BrokerRegistration, after: BrokerRegistration, changed: str
) -> None:
    found = changed_directories(before, after)
    assert " ".join(map(directory_name, found)) == changed


# --- random histories ----------------------------------------------------------------------------

BROKERS = st.integers(1, 3)
DIRS = {1: "ab", 2: "cd", 3: "ef"}
PARTITIONS = st.integers(0, 3)
SIDES = st.integers(0, 1)
STATES = st.sampled_from(["well", "well", "saturated", "stalled"])


class Replicas(RuleBasedStateMachine):
    """Directories fill up, hang, fail and return while records are written and acknowledged.

    All members of the in-sync set hold a record when it is acknowledged. A replica keeps its
    records in any state of its directory, unless the directory is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.records = 0
        self.logs: dict[tuple[int, int], list[int]] = {}
        self.acknowledged: dict[int, list[int]] = {}
        self.dirs: dict[str, str] = {}
        self.incarnations = dict.fromkeys(DIRS, 0)

    def run(self, line: str) -> bool:
        """Return whether the command succeeded."""
        reported = list(self.world.run(line))
        return not (reported and reported[0].startswith("error"))

    def partition(self, number: int) -> PartitionRegistration:
        found = self.world.state.topic("t").partitions[number]
        assert isinstance(found, PartitionRegistration)
        return found

    def standing(self, broker: int, partition: int) -> Acceptance:
        home = self.partition(partition).directory_of(BrokerId(broker))
        assert home is not None
        return acceptance_of(self.world.state.brokers[broker], home)

    def home(self, broker: int, partition: int) -> str:
        home = self.partition(partition).directory_of(BrokerId(broker))
        return "-" if home is None else directory_name(home)

    def online(self, broker: int) -> str:
        return "".join(name for name in DIRS[broker] if self.dirs[name] != "offline")

    @initialize()
    def begin(self) -> None:
        self.run("feature 30")
        self.dirs = dict.fromkeys("abcdef", "well")
        for broker, names in DIRS.items():
            assert self.run(f"register {broker} dirs={','.join(names)}")
            assert self.run(f"heartbeat {broker}")
        self.run("topic t replicas=1,2,3|2,3,1|3,1,2|2,1,3")
        self.run("topic s replicas=1")
        for broker, names in DIRS.items():
            self.run(f"assign {broker} " + " ".join(f"t-{p}={names[p % 2]}" for p in range(4)))
        self.logs = {(broker, p): [] for broker in DIRS for p in range(4)}
        self.acknowledged = {p: [] for p in range(4)}

    # --- directories and brokers -----------------------------------------------------------------

    def send_heartbeat(self, broker: int, options: str = "") -> None:
        names = DIRS[broker]
        offline = ",".join(name for name in names if self.dirs[name] == "offline")
        impaired = ",".join(
            f"{name}:{self.dirs[name]}"
            for name in names
            if self.dirs[name] in ("saturated", "stalled")
        )
        self.run(f"heartbeat {broker} {options} offline={offline} impaired={impaired}")

    @rule(broker=BROKERS, side=SIDES, state=STATES)
    def change_state(self, broker: int, side: int, state: str) -> None:
        name = DIRS[broker][side]
        if self.dirs[name] != "offline":
            self.dirs[name] = state
            self.send_heartbeat(broker)

    @rule(broker=BROKERS, side=SIDES)
    def die(self, broker: int, side: int) -> None:
        self.dirs[DIRS[broker][side]] = "offline"
        self.send_heartbeat(broker)

    @rule(broker=BROKERS)
    def come_back(self, broker: int) -> None:
        """All directories of the broker are repaired within the same incarnation."""
        name = f"incarnation={self.incarnations[broker]}" if self.incarnations[broker] else ""
        if self.run(f"register {broker} dirs={','.join(DIRS[broker])} {name}"):
            for directory_name_ in DIRS[broker]:
                if self.dirs[directory_name_] == "offline":
                    self.dirs[directory_name_] = "well"

    @rule(broker=BROKERS, side=SIDES)
    def forget(self, broker: int, side: int) -> None:
        """Release the directory, and add it again as an empty one."""
        gone = DIRS[broker][side]
        left = self.online(broker).replace(gone, "")
        lost = [p for p in range(4) if self.home(broker, p) == gone]
        name = f"incarnation={self.incarnations[broker]}" if self.incarnations[broker] else ""
        if left and self.run(f"register {broker} dirs={left} forgotten={gone} {name}"):
            for partition in lost:
                self.logs[broker, partition] = []
            self.run(f"register {broker} dirs={','.join(sorted(left + gone))} {name}")
            self.dirs[gone] = "well"

    @rule(broker=BROKERS, request=st.sampled_from(["", "", "want_fence", "want_shut_down"]))
    def heartbeat(self, broker: int, request: str) -> None:
        self.send_heartbeat(broker, request)

    @rule(broker=BROKERS)
    def restart(self, broker: int) -> None:
        self.incarnations[broker] += 1
        name = f"incarnation={self.incarnations[broker]}"
        if self.run(f"register {broker} dirs={','.join(DIRS[broker])} {name}"):
            for directory_name_ in DIRS[broker]:
                if self.dirs[directory_name_] == "offline":
                    self.dirs[directory_name_] = "well"
            self.send_heartbeat(broker)
        else:
            self.incarnations[broker] -= 1

    @rule(silent=BROKERS)
    def fall_silent(self, silent: int) -> None:
        self.run("advance 8000ms")
        for broker in set(DIRS) - {silent}:
            self.send_heartbeat(broker)
        self.run("advance 2000ms")
        self.run("sweep")

    @rule(verb=st.sampled_from(["preferred", "unclean"]))
    def go_round(self, verb: str) -> None:
        self.run(verb)

    # --- records ---------------------------------------------------------------------------------

    @rule(partition=PARTITIONS)
    def write(self, partition: int) -> None:
        leader = self.partition(partition).leader
        if leader >= 0 and self.standing(leader, partition) is ACCEPTABLE:
            self.records += 1
            self.logs[leader, partition].append(self.records)

    @rule(partition=PARTITIONS, broker=BROKERS)
    def fetch(self, partition: int, broker: int) -> None:
        """Copy the whole log; a stalled directory is not read, and an impaired one is not
        written."""
        leader = self.partition(partition).leader
        if leader < 0 or leader == broker or self.standing(broker, partition) is not ACCEPTABLE:
            return
        if self.dirs.get(self.home(leader, partition)) != "stalled":
            self.logs[broker, partition] = list(self.logs[leader, partition])

    @rule(partition=PARTITIONS, dropped=st.sets(BROKERS, max_size=2))
    def ask_for_isr(self, partition: int, dropped: set[int]) -> None:
        """The leader requests an in-sync set of replicas that have its whole log."""
        found = self.partition(partition)
        if not found.has_leader:
            return
        log = self.logs[found.leader, partition]
        members = [
            broker
            for broker in found.replicas
            if broker == found.leader
            or (broker not in dropped and self.logs[broker, partition] == log)
        ]
        self.run(f"alter {found.leader} t-{partition} isr={','.join(map(str, members))}")

    @rule(partition=PARTITIONS, broker=BROKERS, side=SIDES)
    def move(self, partition: int, broker: int, side: int) -> None:
        if self.dirs[DIRS[broker][side]] == "well":
            self.run(f"assign {broker} t-{partition}={DIRS[broker][side]}")

    @rule(partition=PARTITIONS)
    def acknowledge(self, partition: int) -> None:
        found = self.partition(partition)
        if not found.has_leader:
            return
        logs = [self.logs[member, partition] for member in found.isr]
        held = [logs[0][: len(log)] for log in logs if logs[0][: len(log)] == log[: len(logs[0])]]
        if len(held) == len(logs):
            common = min(logs, key=len)
            if len(common) > len(self.acknowledged[partition]):
                self.acknowledged[partition] = list(common)

    # --- invariants -------------------------------------------------------------------------------

    @invariant()
    def no_acknowledged_record_is_lost(self) -> None:
        for partition, acknowledged in self.acknowledged.items():
            leader = self.partition(partition).leader
            if leader >= 0:
                assert self.logs[leader, partition][: len(acknowledged)] == acknowledged

    @invariant()
    def leaders_are_the_best_that_there_are(self) -> None:
        for partition in self.acknowledged:
            found = self.partition(partition)
            standings = {member: self.standing(member, partition) for member in found.isr}
            best = ACCEPTABLE if ACCEPTABLE in standings.values() else LAST_RESORT
            assert found.isr
            if best in standings.values():
                assert standings.get(found.leader) is best, (found, standings)
            else:
                assert not found.has_leader, (found, standings)
            if found.has_leader and best is LAST_RESORT:
                assert found.isr == (found.leader,)
            if found.has_leader and best is ACCEPTABLE:
                assert set(standings.values()) == {ACCEPTABLE}, (found, standings)

    @invariant()
    def the_indexes_follow(self) -> None:
        self.world.managers.index.check_invariants(self.world.state)
        led = self.world.managers.last_resort_leader_count()
        counted = sum(
            partition.has_leader
            and acceptance_of(
                self.world.state.brokers[partition.leader],
                _home_of_leader(partition),
            )
            is LAST_RESORT
            for _, partition in self.world.state.partitions()
        )
        assert led == counted


def _home_of_leader(partition: PartitionRegistration) -> DirectoryId:
    home = partition.directory_of(partition.leader)
    assert home is not None
    return home


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
