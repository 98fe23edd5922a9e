"""Invariants of the metadata after each entry, and between successive entries.

The invariants cover decisions, not the state of disks: a broker that has just died is in sync
until the controller is notified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kraftjbod.core.ids import NO_LEADER, BrokerId, TopicIdPartition
from kraftjbod.core.metadata_version import ELIGIBLE_LEADER_REPLICAS_VERSION
from kraftjbod.metadata.records import Record
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataDelta, MetadataState


class MetadataInvariants:
    """Replays a metadata log entry by entry, and judges each."""

    def __init__(
        self,
        min_isr: Callable[[MetadataState, str], int],
        *,
        loose: Callable[[], set[str]] = set,
    ) -> None:
        """
        :param min_isr: returns ``min.insync.replicas`` of a topic, by name.
        :param loose: returns the topics for which an unclean leader may be elected.
        """
        self._loose = loose
        self.state = MetadataState()
        self._min_isr = min_isr
        #: Leader by partition and epoch.
        self._leaders: dict[tuple[TopicIdPartition, int], BrokerId] = {}

    def take(self, records: Iterable[Record], *, offset: int, epoch: int) -> list[str]:
        """Replay one entry; return its violations, one sentence each."""
        delta = MetadataDelta()
        try:
            self.state.replay(records, offset=offset, epoch=epoch, delta=delta)
        except Exception as e:
            return [f"metadata entry {offset} cannot be replayed: {e!r}"]
        findings: list[str] = []
        for key, before in delta.partitions.items():
            after = self.state.partition(key)
            if after is None:
                continue
            topic = self.state.topics[key.topic_id].name
            name = f"{topic}-{key.partition}"
            if delta.features:
                # A lower level changes the form of the same partition.
                findings += self._illegal(name, topic, after)
            else:
                findings += self._judge(name, key, before, after)
        if delta.features or delta.brokers:
            findings += self._above_software()
        return [f"metadata entry {offset}: {finding}" for finding in findings]

    def _above_software(self) -> list[str]:
        """Invariant: no level is above what the software of a registered broker supports."""
        return [
            f"{feature.name} is {level}, and broker {broker_id} supports {feature.highest}"
            for broker_id, broker in self.state.brokers.items()
            for feature in broker.features
            if (level := self.state.features.get(feature.name, 0)) > feature.highest
        ]

    def continue_from(self, state: MetadataState) -> list[str]:
        """Continue from ``state``, since the entries before it are only in a snapshot."""
        self.state = state.copy()
        findings: list[str] = []
        for key, one in self.state.partitions():
            topic = self.state.topics[key.topic_id].name
            name = f"{topic}-{key.partition}"
            findings += self._illegal(name, topic, one)
            findings += self._other_leaders(name, key, one)
        return [f"metadata up to {state.offset}: {finding}" for finding in findings]

    def _judge(
        self,
        name: str,
        key: TopicIdPartition,
        before: PartitionRegistration | None,
        after: PartitionRegistration,
    ) -> list[str]:
        topic = self.state.topics[key.topic_id].name
        findings = self._illegal(name, topic, after)
        if before is not None:
            findings += _illegal_step(name, before, after)
            if topic not in self._loose():
                findings += _unclean(name, before, after)
            findings += self._moved_into_closed(name, before, after)
        findings += self._other_leaders(name, key, after)
        findings += self._unfit(name, before, after)
        return findings

    def _illegal(self, name: str, topic: str, one: PartitionRegistration) -> list[str]:
        min_isr = one.min_isr(self._min_isr(self.state, topic))
        has_elr = bool(self.state.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0))
        return _illegal(name, one, min_isr, has_elr=has_elr)

    def _other_leaders(
        self, name: str, key: TopicIdPartition, one: PartitionRegistration
    ) -> list[str]:
        if not one.has_leader:
            return []
        first = self._leaders.setdefault((key, one.leader_epoch), one.leader)
        if first == one.leader:
            return []
        return [f"{name} has leader {one.leader} in epoch {one.leader_epoch}, and had {first}"]

    def _unfit(
        self, name: str, before: PartitionRegistration | None, after: PartitionRegistration
    ) -> list[str]:
        """Invariant: new in-sync replicas and leaders are unfenced, with an online directory."""
        new = set(after.isr) - set(() if before is None else before.isr)
        if after.has_leader and (before is None or before.leader_epoch != after.leader_epoch):
            new.add(after.leader)
        return [
            f"{name}: broker {broker_id} is in sync or leads, and is not there"
            for broker_id in sorted(new)
            if not _is_there(self.state.brokers.get(broker_id), after, broker_id)
        ]

    def _moved_into_closed(
        self, name: str, before: PartitionRegistration, after: PartitionRegistration
    ) -> list[str]:
        findings = []
        for broker_id, directory_id in zip(after.replicas, after.directories, strict=True):
            broker = self.state.brokers.get(broker_id)
            if broker is None or directory_id.is_reserved or broker_id in before.replicas:
                continue
            if directory_id in broker.cordoned_log_dirs:
                findings.append(
                    f"{name}: a new replica of broker {broker_id} was placed into cordoned "
                    f"{directory_id}"
                )
        return findings


def _is_there(
    broker: BrokerRegistration | None, partition: PartitionRegistration, broker_id: BrokerId
) -> bool:
    directory_id = partition.directory_of(broker_id)
    return (
        broker is not None
        and not broker.fenced
        and directory_id is not None
        and broker.has_online_dir(directory_id)
    )


def _illegal(name: str, one: PartitionRegistration, min_isr: int, *, has_elr: bool) -> list[str]:
    replicas = set(one.replicas)
    isr, elr = set(one.isr), set(one.elr)
    return [
        f"{name}: {what}: {one}"
        for what, is_violated in (
            ("replicas twice", len(replicas) != len(one.replicas)),
            ("in-sync twice", len(isr) != len(one.isr)),
            ("in-sync and no replica", not isr <= replicas),
            ("eligible and no replica", not elr <= replicas),
            ("in sync and eligible", bool(isr & elr)),
            ("eligible beside enough in sync", bool(elr) and len(isr) >= min_isr),
            ("leader not in sync", one.leader != NO_LEADER and one.leader not in isr),
            # Without eligible leader replicas the last member stays in sync when it is away.
            (
                "no leader, though some are in sync",
                one.leader == NO_LEADER and bool(isr) and has_elr,
            ),
            ("eligible without that feature", bool(elr) and not has_elr),
            ("no replica is known to hold it", not (isr or elr or one.last_known_elr)),
            ("directories", len(one.directories) != len(one.replicas)),
            ("adding no replica", not set(one.adding_replicas) <= replicas),
            ("removing no replica", not set(one.removing_replicas) <= replicas),
        )
        if is_violated
    ]


def _illegal_step(
    name: str, before: PartitionRegistration, after: PartitionRegistration
) -> list[str]:
    findings = []
    if after.leader_epoch < before.leader_epoch:
        findings.append(f"{name}: leader epoch {before.leader_epoch}, then {after.leader_epoch}")
    if after.partition_epoch <= before.partition_epoch:
        findings.append(
            f"{name}: partition epoch {before.partition_epoch}, then {after.partition_epoch}"
        )
    return findings


def _unclean(name: str, before: PartitionRegistration, after: PartitionRegistration) -> list[str]:
    held = set(before.isr) | set(before.elr) | set(before.last_known_elr)
    # A leader that is full, or leaves, adds a member and resigns in the same decision.
    leaves = before.leader not in after.replicas
    gave_way = before.has_leader and (leaves or before.leader in after.elr)
    if not after.has_leader or after.leader in held or gave_way:
        return []
    return [
        f"{name}: broker {after.leader} is elected, and was neither in sync nor eligible: {before}"
    ]
