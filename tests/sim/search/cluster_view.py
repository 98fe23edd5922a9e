"""``ClusterView``: read access to the internal state of the daemons of a simulated cluster.

Only this file knows where daemons keep the state that invariants check. Nothing here changes
state, waits, or takes virtual time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from kraftjbod.broker.cluster.lifecycle.lifecycle_state import BrokerState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, TopicId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.daemon.broker_server import BrokerServer
from kraftjbod.daemon.controller_server import ControllerServer
from kraftjbod.daemon.wiring.broker_wiring import BrokerWiring
from kraftjbod.metadata.records import Record
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.snapshot_files import Snapshot
from kraftjbod.raft.machine.messages import Entry
from kraftjbod.raft.machine.voter_set import ReplicaKey
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster, SimulatedController
from tests.sim.search.metadata_files import snapshot_records, stored_entries


class NamedPartition(NamedTuple):
    """A partition in the metadata, with its topic's name and id."""

    tp: TopicPartition
    registration: PartitionRegistration
    topic_id: TopicId


class ActingController(NamedTuple):
    """A controller that would act as the active one and answer a heartbeat now."""

    name: str
    term: int
    election_timeout_ms: int
    has_drifted: bool


class BrokerSession(NamedTuple):
    """The session with the controller as a running broker sees it."""

    name: str
    broker_id: BrokerId
    epoch: BrokerEpoch
    state: BrokerState
    may_be_deposed: bool
    metadata: MetadataState
    has_drifted: bool


class ClusterView:
    """:param cluster: the cluster. Each method returns the state at the time of the call."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    @property
    def now_ms(self) -> int:
        return self._cluster.now_ms

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self._cluster.brokers)

    # --- the controller --------------------------------------------------------------------------

    @property
    def controller_count(self) -> int:
        return len(self._cluster.controllers)

    @property
    def active_host(self) -> SimulatedController | None:
        """Host of the active controller, or None. A former leader may not know of its removal."""
        open_hosts = [
            host
            for host in self._quorum
            if host.is_up and host.daemon is not None and host.daemon._listener is not None
        ]
        if self.controller_count == 1:
            return open_hosts[0] if open_hosts else None
        active = {
            driver.term: host
            for host in open_hosts
            if host.is_active and (driver := self._driver(host)) is not None
        }
        return active[max(active)] if active else None

    @property
    def controller(self) -> ControllerServer | None:
        """The active controller, or None."""
        host = self.active_host
        return None if host is None else host.daemon

    def _driver(self, host: SimulatedController) -> RaftDriver | None:
        daemon = host.daemon if host.is_up else None
        return None if daemon is None or daemon.controller is None else daemon.controller.driver

    @property
    def _quorum(self) -> list[SimulatedController]:
        """Return the voters of the cluster's quorum, without those of a separate quorum."""
        return [host for host in self._cluster.controllers if not host.is_standalone]

    @property
    def _all_controllers(self) -> list[SimulatedController]:
        """Return voters and observers."""
        return [*self._quorum, *self._cluster.observers]

    def mistaken_controllers(self) -> set[ReplicaKey]:
        """Return the replica keys of controllers whose disks were formatted as another quorum."""
        return {
            ReplicaKey(BrokerId(host.node_id), host.directory_id)
            for host in self._cluster.controllers
            if host.is_standalone
        }

    def drivers(self) -> list[tuple[str, RaftDriver]]:
        """Return the Raft drivers of all running controllers and observers, by name."""
        found = [(host.name, self._driver(host)) for host in self._all_controllers]
        return [(name, driver) for name, driver in found if driver is not None]

    def acting_controllers(self) -> list[ActingController]:
        """Return all controllers that would answer as the active one, oldest or newest term."""
        return [
            ActingController(
                name=host.name,
                term=driver.term,
                election_timeout_ms=driver._ticks._election_timeout_ms,
                has_drifted=host.clock is not None,
            )
            for host in self._quorum
            if host.is_active and (driver := self._driver(host)) is not None
        ]

    def stored_entries(self, name: str, first: int, last: int) -> Iterator[Entry]:
        """Yield the entries from ``first`` to ``last`` on the disk of a controller."""
        return stored_entries(self._controller_named(name).metadata_disk, first, last)

    def snapshot_records(self, name: str, snapshot: Snapshot) -> list[Record] | None:
        """Return the records of a controller's snapshot, None if it is gone or damaged."""
        return snapshot_records(self._controller_named(name).metadata_disk, snapshot)

    def _controller_named(self, name: str) -> SimulatedController:
        return next(host for host in self._all_controllers if host.name == name)

    def controller_states(self) -> list[tuple[str, MetadataState]]:
        found = [(host.name, host.state) for host in self._all_controllers]
        return [(name, state) for name, state in found if state is not None]

    def controller_not_whole(self, host: SimulatedController) -> list[str]:
        """Return the reasons why the controller cannot follow or lead, one sentence each."""
        driver, leader = self._driver(host), self.active_host
        leading = None if leader is None else self._driver(leader)
        if leader is None or leading is None:
            return ["no controller leads"]
        if driver is None or driver._core is None or host.state is None:
            return [f"{host.name} does not run"]
        if driver.leader != leader.node_id or driver.term != leading.term:
            return [f"{host.name} does not follow {leader.name}"]
        if driver._core.is_mute:
            return [f"{host.name} is mute since the end of its log was damaged"]
        if driver.committed_offset != leading.committed_offset:
            return [f"{host.name} has committed up to {driver.committed_offset}"]
        if driver.committed.is_reloading or host.state.offset != driver.committed_offset:
            return [f"{host.name} has replayed up to {host.state.offset}"]
        return []

    def log_span(self, host: SimulatedController) -> tuple[int, int]:
        """Return the offset before the first entry on the disk of a running controller, and the
        last offset of its log. Both are -1 if it does not run.
        """
        driver = self._driver(host)
        if driver is None or driver._core is None:
            return -1, -1
        return driver._core.log.base.last_offset, driver._core.log.last_offset

    def receives_snapshot(self, host: SimulatedController) -> bool:
        driver = self._driver(host)
        return driver is not None and driver._core is not None and driver._core._receiving[1] > 0

    def follows(self, host: SimulatedController) -> bool:
        """Return whether the controller runs, knows its metadata and follows a leader."""
        driver = self._driver(host)
        known = driver is not None and driver._core is not None and host.state is not None
        return known and driver is not None and driver.leader not in (None, host.node_id)

    def not_voting(self) -> list[SimulatedController]:
        """Return the controllers whose current disks the leader does not count as voters."""
        leading = None if self.active_host is None else self._driver(self.active_host)
        if leading is None:
            return []
        voters, hosts = leading.voters, self._cluster.controllers
        keys = [ReplicaKey(BrokerId(host.node_id), host.directory_id) for host in hosts]
        return [
            host
            for host, key in zip(hosts, keys, strict=True)
            if voters.known_as(key) not in voters
        ]

    def decided(self) -> MetadataState | None:
        """The active controller's metadata, of which the end may not be committed yet."""
        controller = self.controller
        if controller is None or controller._controller is None:
            return None
        return controller._controller._managers.state

    def newest_epoch(self, topic_id: TopicId, partition: int) -> int:
        """Return the newest leader epoch of a partition that a running node knows.

        -1 if the node with the newest metadata does not know the partition.
        """
        states = [self.state_of(broker_id) for broker_id in self.broker_ids]
        known = [state for state in (self.decided(), *states) if state is not None]
        if not known or topic_id not in max(known, key=lambda state: state.offset).topics:
            return -1
        topics = [state.topics.get(topic_id) for state in known]
        found = [topic.partitions.get(partition) for topic in topics if topic is not None]
        return max((int(one.leader_epoch) for one in found if one is not None), default=-1)

    def decided_offset(self) -> int:
        state = self.decided()
        return -1 if state is None else state.offset

    def committed_offset(self) -> int:
        controller = self.controller
        if controller is None or controller._controller is None:
            return -1
        return controller._controller._driver.committed_offset

    def entries_from(self, offset: int) -> Iterator[Entry]:
        """Yield the committed metadata entries that controllers have in memory."""
        for _, driver in self.drivers():
            cache = driver.committed.cache
            while offset <= driver.committed_offset and offset in cache:
                yield cache[offset]
                offset += 1

    def state_after(self, offset: int) -> MetadataState | None:
        """Return the newest metadata of any broker if it is newer than ``offset``, else None.

        Brokers replay committed entries only. A controller that was killed after a snapshot no
        longer has the entries before it.
        """
        states = [self.state_of(broker_id) for broker_id in self.broker_ids]
        later = [state for state in states if state is not None and state.offset > offset]
        return max(later, key=lambda state: state.offset, default=None)

    # --- brokers ---------------------------------------------------------------------------------

    def server(self, broker_id: int) -> BrokerServer | None:
        """Return the daemon if it runs, else None."""
        host = self._cluster.brokers[broker_id]
        return host.daemon if host.is_up else None

    def wiring(self, broker_id: int) -> BrokerWiring | None:
        return self._cluster.brokers[broker_id].wiring

    def is_serving(self, broker_id: int) -> bool:
        server = self.server(broker_id)
        return server is not None and server.is_open

    def state_of(self, broker_id: int) -> MetadataState | None:
        """Return the metadata that the broker has replayed, or None."""
        wiring = self.wiring(broker_id)
        return None if wiring is None else wiring.cluster.cache.state

    def sessions(self) -> list[BrokerSession]:
        """Return the sessions of all brokers that run."""
        found = []
        drifted = any(host.clock is not None for host in self._cluster.controllers)
        for broker_id, host in self._cluster.brokers.items():
            if (wiring := host.wiring) is None:
                continue
            lifecycle = wiring.cluster.lifecycle
            session = BrokerSession(
                name=host.name,
                broker_id=BrokerId(broker_id),
                epoch=lifecycle.broker_epoch,
                state=lifecycle.state,
                may_be_deposed=lifecycle.may_be_deposed,
                metadata=wiring.cluster.cache.state,
                has_drifted=drifted or host.clock is not None,
            )
            found.append(session)
        return found

    def dirs(self, broker_id: int) -> list[LogDir]:
        server = self.server(broker_id)
        if server is None or server._disks is None:
            return []
        return list(server._disks.logs.dirs())

    def dir_state(self, broker_id: int, path: str) -> LogDirState | None:
        """Return the state of a directory; None if the broker does not run or does not have it."""
        return next((d.state for d in self.dirs(broker_id) if d.path == path), None)

    def online_id(self, broker_id: int, path: str) -> DirectoryId | None:
        """Return the id of the directory if the broker runs and the directory is online."""
        return next(
            (d.directory_id for d in self.dirs(broker_id) if d.path == path and d.is_online), None
        )

    def replica(self, broker_id: int, tp: TopicPartition) -> HostedReplica | None:
        wiring = self.wiring(broker_id)
        return None if wiring is None else wiring.replicas.hosted.get(tp)

    def settled_end(self, broker_id: int, tp: TopicPartition) -> int | None:
        """Return the log end offset of a leader if all records are committed and no transaction is
        open.
        """
        replica = self.replica(broker_id, tp)
        if replica is None or replica.handle is None or replica.partition is None:
            return None
        committed = replica.handle.view.last_stable_offset(replica.partition.high_watermark)
        end = replica.handle.log_end_offset
        return end if replica.partition.is_leader and committed == end else None

    def replicas(self, broker_id: int) -> list[HostedReplica]:
        wiring = self.wiring(broker_id)
        return [] if wiring is None else list(wiring.replicas.hosted)

    def hosted_names(self, broker_id: int) -> set[str]:
        """Return the names of the directories of the broker's open logs."""
        return {
            f"{replica.topic_partition}"
            for replica in self.replicas(broker_id)
            if replica.handle is not None
        }

    # --- together --------------------------------------------------------------------------------

    def partitions(self, names: Collection[str] | None = None) -> list[NamedPartition]:
        """Return the partitions in the active controller's metadata, sorted by name.

        :param names: names of the topics; None: all topics.
        """
        state = self.decided()
        if state is None:
            return []
        if names is None:
            topics = list(state.topics.values())
        else:
            topics = [topic for name in names if (topic := state.topic(name)) is not None]
        found = [
            NamedPartition(TopicPartition(topic.name, number), one, topic.topic_id)
            for topic in topics
            for number, one in topic.partitions.items()
        ]
        return sorted(found, key=lambda one: one.tp)

    def not_whole(self, dirs: int) -> list[str]:
        """Return the reasons why the cluster is not fully recovered, one sentence each."""
        state = self.decided()
        if state is None:
            return ["no controller leads"]
        missing: list[str] = []
        for host in self._all_controllers if self.controller_count > 1 else ():
            missing += self.controller_not_whole(host)
        for broker_id in self.broker_ids:
            missing += self._broker_not_whole(state, broker_id, dirs)
        if missing:
            return missing
        for one in self.partitions():
            missing += self._partition_not_whole(*one)
        return missing

    def not_replayed(self) -> list[str]:
        """Return the brokers that have not replayed all metadata, one sentence each."""
        state = self.decided()
        if state is None:
            return ["no controller leads"]
        states_by_broker = {broker_id: self.state_of(broker_id) for broker_id in self.broker_ids}
        return [
            f"broker {broker_id} has not replayed metadata offset {state.offset}"
            for broker_id, its in states_by_broker.items()
            if its is None or its.offset != state.offset
        ]

    def misconfigured(self) -> list[str]:
        """Return the logs whose configuration differs from their topic's, one sentence each."""
        wrong = []
        for broker_id in self.broker_ids:
            if (wiring := self.wiring(broker_id)) is None:
                continue
            for replica in self.replicas(broker_id):
                tp, handle = replica.topic_partition, replica.handle
                wanted = wiring.cluster.topic_configs.get(tp.topic)
                if handle is not None and handle.config != wanted:
                    wrong.append(f"{tp} has another configuration in broker {broker_id}")
        return wrong

    def left_behind(self) -> list[str]:
        """Return the partitions whose replicas have different end offsets, one sentence each."""
        missing = []
        for tp, one, _ in self.partitions():
            found = [self.replica(broker_id, tp) for broker_id in one.replicas]
            ends = [
                None if r is None or r.handle is None else r.handle.log_end_offset for r in found
            ]
            if len(set(ends)) > 1:
                missing.append(f"{tp} ends at {ends} in brokers {one.replicas}")
        return missing

    def _broker_not_whole(self, state: MetadataState, broker_id: int, dirs: int) -> list[str]:
        name = f"broker {broker_id}"
        wiring, registration = self.wiring(broker_id), state.brokers.get(BrokerId(broker_id))
        if wiring is None or not self.is_serving(broker_id):
            return [f"{name} does not serve"]
        if registration is None or registration.fenced or registration.in_controlled_shutdown:
            return [f"{name} is fenced"]
        missing = []
        if wiring.cluster.cache.state.offset != state.offset or (
            self.committed_offset() != state.offset
        ):
            missing.append(f"{name} is at metadata offset {wiring.cluster.cache.state.offset}")
        online = [one for one in self.dirs(broker_id) if one.state is LogDirState.ONLINE]
        if len(online) != dirs:
            missing.append(f"{name} has {len(online)} of {dirs} directories online")
        if set(registration.log_dirs) != {one.directory_id for one in online}:
            missing.append(f"{name}: the controller knows other directories")
        if wiring.cluster.lifecycle.unacknowledged_dirs:
            missing.append(f"{name} has unreported failures")
        if wiring.cluster.assignments.queued:
            missing.append(f"{name} has unreported assignments")
        if wiring.replicas.moves.moves():
            missing.append(f"{name} moves replicas")
        return missing

    def _partition_not_whole(
        self, tp: TopicPartition, one: PartitionRegistration, topic_id: TopicId
    ) -> list[str]:
        if not one.has_leader:
            return [f"{tp} has no leader"]
        if set(one.isr) != set(one.replicas):
            return [f"{tp} has in sync {one.isr} of {one.replicas}"]
        if one.is_reassigning:
            return [f"{tp} is being reassigned"]
        missing = []
        for broker_id, directory_id in zip(one.replicas, one.directories, strict=True):
            replica = self.replica(broker_id, tp)
            if replica is None or replica.handle is None or replica.partition is None:
                missing.append(f"{tp} has no log in broker {broker_id}")
            elif replica.topic_id != topic_id:
                missing.append(f"{tp} is of another topic in broker {broker_id}")
            elif replica.handle.log_dir.directory_id != directory_id:
                missing.append(f"{tp} is in another directory of broker {broker_id} than named")
            elif replica.partition.partition_epoch != one.partition_epoch:
                missing.append(f"{tp} is at an older epoch in broker {broker_id}")
        return missing
