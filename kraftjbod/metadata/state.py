"""PURE. ``MetadataState``: the complete cluster metadata, changed only by replaying records.

Controllers and brokers use this same class, so they interpret every record in the same way.

* ``replay`` and ``replay_part`` are the only methods that change the state. They fill a delta.
* ``snapshot_records`` returns records that rebuild the same state from an empty one.
* ``is_replica_online`` is the only rule for whether a replica counts as online.
* When ``metadata.version`` is lowered, every node drops the values that the new level cannot
  represent, at the same offset. The same holds when eligible leader replicas are turned off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from kraftjbod.core.acl import AclBinding
from kraftjbod.core.client_quota import QuotaEntity
from kraftjbod.core.errors import RemoteProtocolError, StartupError
from kraftjbod.core.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
    Uuid,
)
from kraftjbod.core.metadata_version import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    MetadataVersion,
)
from kraftjbod.core.scram import ScramCredential, ScramMechanism
from kraftjbod.core.topic_config import MIN_INSYNC_REPLICAS
from kraftjbod.metadata.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
)
from kraftjbod.metadata.registrations import (
    BrokerRegistration,
    PartitionRegistration,
    TopicRegistration,
)

DEFAULT_SESSION_LIMIT_MS: Final = 10_000
"""Used if the log does not state the limit: the sum of the two default time-outs."""


@dataclass(slots=True)
class MetadataDelta:
    """Objects that one or more entries changed, such as brokers and partitions. Their new values
    are in the ``MetadataState``.
    """

    brokers: set[BrokerId] = field(default_factory=set)
    registered: set[BrokerId] = field(default_factory=set)
    """The members of ``brokers`` with a registration record, be it new or repeated."""
    created_topics: set[TopicId] = field(default_factory=set)
    deleted_topics: dict[TopicId, TopicRegistration] = field(default_factory=dict)
    """Last values of deleted topics, including topics created and deleted within the delta."""
    partitions: dict[TopicIdPartition, PartitionRegistration | None] = field(default_factory=dict)
    """Changed partitions of existing topics with their *previous* value, None if new."""
    configs: set[tuple[ResourceType, str]] = field(default_factory=set)
    features: bool = False
    added_acls: dict[Uuid, AclBinding] = field(default_factory=dict)
    removed_acls: dict[Uuid, AclBinding] = field(default_factory=dict)
    """A binding that was added and removed within the delta is in both mappings."""
    client_quotas: set[QuotaEntity] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.brokers
            or self.created_topics
            or self.deleted_topics
            or self.partitions
            or self.configs
            or self.features
            or self.added_acls
            or self.removed_acls
            or self.client_quotas
        )


@dataclass(slots=True)
class LayoutOffsets:
    """Offsets of the last entries that may change the assignment of a consumer group.

    The entries concern topics (partitions, replicas) and brokers (racks). Comparisons of states
    ignore these offsets: a node that loaded a snapshot has that snapshot's offset.
    """

    topics: int = field(default=-1, compare=False)
    """Last creation or deletion of a topic, or change of its partition count or replicas."""
    racks: int = field(default=-1, compare=False)
    """Last addition or removal of a broker, or change of its rack."""


SecurityRecord = (
    AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | ClientQuotaRecord
)
Configs = Mapping[tuple[ResourceType, str], Mapping[str, str]]


def overrides_of(configs: Configs, topic: str) -> Mapping[str, str]:
    """Return the overrides of a topic: its own values, and the cluster's ``min.insync.replicas``.

    ``min.insync.replicas`` has no other source, so controllers and brokers agree (KIP-966).
    """
    own = configs.get((ResourceType.TOPIC, topic), {})
    of_all = configs.get((ResourceType.BROKER, ""), {}).get(MIN_INSYNC_REPLICAS)
    return own if of_all is None else {MIN_INSYNC_REPLICAS: of_all, **own}


class MetadataState:
    """Complete metadata of the cluster, as of the log entry at ``offset``.

    Other code must not change the attributes.
    """

    def __init__(self) -> None:
        #: Offset of the last replayed entry; -1 before the first.
        self.offset: int = -1
        #: Epoch of that entry.
        self.epoch: int = -1
        #: Id of the metadata log; None if the log was created before logs had ids.
        self.metadata_log_id: Uuid | None = None
        #: How long, in ms, a broker may rely on its session after another controller was elected.
        self.session_limit_ms: int = DEFAULT_SESSION_LIMIT_MS
        self.brokers: dict[BrokerId, BrokerRegistration] = {}
        #: The last incarnation of each controller, voter or not.
        self.controllers: dict[BrokerId, RegisterControllerRecord] = {}
        self.topics: dict[TopicId, TopicRegistration] = {}
        #: Id of each existing topic, by name.
        self.topic_ids: dict[str, TopicId] = {}
        self.layout = LayoutOffsets()
        self.configs: dict[tuple[ResourceType, str], dict[str, str]] = {}
        self.features: dict[str, int] = {}
        #: The latest level until a record sets the level, so that no value is rejected.
        self.metadata_version: MetadataVersion = LATEST_METADATA_VERSION
        self.next_producer_id: int = 0
        #: Bindings of the access control lists, by the ids of their records.
        self.acls: dict[Uuid, AclBinding] = {}
        #: The id of each binding.
        self.acl_ids: dict[AclBinding, Uuid] = {}
        #: SCRAM credentials by mechanism and user.
        self.scram_credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        #: Quotas of clients. Each change replaces an entity's mapping.
        self.client_quotas: dict[QuotaEntity, Mapping[str, float]] = {}

    def __repr__(self) -> str:
        return (
            f"<MetadataState offset={self.offset} brokers={len(self.brokers)} "
            f"topics={len(self.topics)}>"
        )

    # --- reading ---------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicRegistration | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, key: TopicIdPartition) -> PartitionRegistration | None:
        topic = self.topics.get(key.topic_id)
        return None if topic is None else topic.partitions.get(key.partition)

    def partition_named(self, key: TopicPartition) -> PartitionRegistration | None:
        topic = self.topic(key.topic)
        return None if topic is None else topic.partitions.get(key.partition)

    def partitions(self) -> Iterator[tuple[TopicIdPartition, PartitionRegistration]]:
        """Yield every partition of every topic, with its topic id and number."""
        for topic_id, topic in self.topics.items():
            for index, partition in topic.partitions.items():
                yield TopicIdPartition(topic_id, index), partition

    def topic_config(self, name: str) -> dict[str, str]:
        """Return the configuration values of the topic ``name``; empty without any. The caller must
        not change the mapping.
        """
        return self.configs.get((ResourceType.TOPIC, name), {})

    def topic_overrides(self, name: str) -> Mapping[str, str]:
        """Return the values that override the nodes' files for a topic (:func:`overrides_of`)."""
        return overrides_of(self.configs, name)

    @property
    def has_elr(self) -> bool:
        """Whether partitions have eligible leader replicas (KIP-966)."""
        return self.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0

    def is_replica_online(self, broker_id: BrokerId, directory_id: DirectoryId) -> bool:
        """Return whether the broker is unfenced and the replica's directory is online.

        KIP-858, "Metadata caching".
        """
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and broker.has_online_dir(directory_id)

    def knows_dirs_of(self, broker_id: BrokerId) -> bool:
        """Return whether the broker registered directories, which needs a level that supports
        them.
        """
        broker = self.brokers.get(broker_id)
        return broker is not None and bool(broker.known_log_dirs)

    # --- replay ----------------------------------------------------------------------------------

    def replay(
        self, records: Iterable[Record], *, offset: int, epoch: int, delta: MetadataDelta
    ) -> None:
        """Apply one entry and add its changes to ``delta``.

        :param epoch: leader epoch of the entry.
        :raises RemoteProtocolError: the entry raises ``metadata.version`` above the levels of this
            software. The records from there on are not applied.
        """
        assert offset > self.offset, (offset, self.offset)
        self.replay_part(records, offset=offset, delta=delta)
        self.offset = offset
        self.epoch = epoch

    def replay_part(self, records: Iterable[Record], *, offset: int, delta: MetadataDelta) -> None:
        """Apply the first records of an entry that arrives in parts. The last part goes to
        :meth:`replay`.

        Errors are those of :meth:`replay`.
        """
        for record in records:
            self._replay_one(record, offset, delta)

    def _replay_one(self, record: Record, offset: int, delta: MetadataDelta) -> None:
        match record:
            case PartitionChangeRecord() | PartitionRecord():
                self._replay_partition(record, offset, delta)
            case RegisterBrokerRecord():
                self._replay_broker(record, offset, delta)
            case BrokerRegistrationChangeRecord():
                self.brokers[record.broker_id] = self.brokers[record.broker_id].merge(record)
                delta.brokers.add(record.broker_id)
            case UnregisterBrokerRecord():
                assert self.brokers[record.broker_id].epoch == record.broker_epoch, record
                del self.brokers[record.broker_id]
                self.layout.racks = offset
                delta.brokers.add(record.broker_id)
            case RegisterControllerRecord() | UnregisterControllerRecord():
                self._replay_controller(record)
            case TopicRecord():
                self.topics[record.topic_id] = TopicRegistration(
                    name=record.name, topic_id=record.topic_id, layout_offset=offset
                )
                self.layout.topics = offset
                self.topic_ids[record.name] = record.topic_id
                delta.created_topics.add(record.topic_id)
            case RemoveTopicRecord():
                self._remove_topic(record.topic_id, delta)
                self.layout.topics = offset
            case ConfigRecord():
                self._replay_config(record, delta)
            case FeatureLevelRecord():
                self._replay_feature(record, delta)
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case (
                AccessControlEntryRecord()
                | RemoveAccessControlEntryRecord()
                | UserScramCredentialRecord()
                | RemoveUserScramCredentialRecord()
                | ClientQuotaRecord()
            ):
                self._replay_security(record, delta)
            case _:
                assert_never(record)

    def _replay_controller(
        self, record: RegisterControllerRecord | UnregisterControllerRecord
    ) -> None:
        if isinstance(record, RegisterControllerRecord):
            self.controllers[record.controller_id] = record
        else:
            del self.controllers[record.controller_id]

    def _replay_security(self, record: SecurityRecord, delta: MetadataDelta) -> None:
        if isinstance(record, AccessControlEntryRecord | RemoveAccessControlEntryRecord):
            self._replay_acl(record, delta)
        elif isinstance(record, ClientQuotaRecord):
            self._replay_quota(record, delta)
        else:
            self._replay_scram(record)

    def _replay_quota(self, record: ClientQuotaRecord, delta: MetadataDelta) -> None:
        values = dict(self.client_quotas.pop(record.entity, {}))
        if record.value is None:
            del values[record.key]
        else:
            values[record.key] = record.value
        if values:
            self.client_quotas[record.entity] = values
        delta.client_quotas.add(record.entity)

    def _replay_scram(
        self, record: UserScramCredentialRecord | RemoveUserScramCredentialRecord
    ) -> None:
        key = (record.mechanism, record.name)
        if isinstance(record, RemoveUserScramCredentialRecord):
            del self.scram_credentials[key]
            return
        self.scram_credentials[key] = ScramCredential(
            salt=record.salt,
            stored_key=record.stored_key,
            server_key=record.server_key,
            iterations=record.iterations,
        )

    def _replay_acl(
        self,
        record: AccessControlEntryRecord | RemoveAccessControlEntryRecord,
        delta: MetadataDelta,
    ) -> None:
        if isinstance(record, AccessControlEntryRecord):
            assert record.acl_id not in self.acls, record
            self.acls[record.acl_id] = record.binding
            self.acl_ids[record.binding] = record.acl_id
            delta.added_acls[record.acl_id] = record.binding
            return
        binding = self.acls.pop(record.acl_id)
        if self.acl_ids[binding] == record.acl_id:
            del self.acl_ids[binding]
        delta.removed_acls[record.acl_id] = binding

    def _replay_broker(
        self, record: RegisterBrokerRecord, offset: int, delta: MetadataDelta
    ) -> None:
        before = self.brokers.get(record.broker_id)
        if before is None or before.rack != record.rack:
            self.layout.racks = offset
        self.brokers[record.broker_id] = BrokerRegistration.from_record(
            record, registered_at=offset
        )
        delta.brokers.add(record.broker_id)
        delta.registered.add(record.broker_id)

    def _replay_partition(
        self, record: PartitionRecord | PartitionChangeRecord, offset: int, delta: MetadataDelta
    ) -> None:
        topic = self.topics[record.topic_id]
        partitions = topic.partitions
        before = partitions.get(record.partition_id)
        if isinstance(record, PartitionRecord):
            after = PartitionRegistration.from_record(record)
        else:
            assert before is not None, record
            after = before.merge(record)
        partitions[record.partition_id] = after
        if before is None or before.replicas != after.replicas:
            self.layout.topics = offset
            if topic.layout_offset != offset:
                self.topics[record.topic_id] = dataclasses.replace(topic, layout_offset=offset)
        delta.partitions.setdefault(_key(record), before)

    def _replay_feature(self, record: FeatureLevelRecord, delta: MetadataDelta) -> None:
        if record.name == METADATA_VERSION:
            try:
                level = MetadataVersion.of_level(record.feature_level)
            except StartupError as e:
                raise RemoteProtocolError(f"{e}; start a newer version of this software") from e
            if level < self.metadata_version:
                self._forget_above(level, delta)
            self.metadata_version = level
            if record.metadata_log_id is not None:
                self.metadata_log_id = record.metadata_log_id
            self.session_limit_ms = record.session_limit_ms or self.session_limit_ms
        elif record.name == ELIGIBLE_LEADER_REPLICAS_VERSION and not record.feature_level:
            self._change_partitions(PartitionRegistration.without_elr, delta)
        self.features[record.name] = record.feature_level
        delta.features = True

    def _forget_above(self, level: MetadataVersion, delta: MetadataDelta) -> None:
        for broker_id, broker in self.brokers.items():
            reduced = broker.at_level(level)
            if reduced != broker:
                self.brokers[broker_id] = reduced
                delta.brokers.add(broker_id)
        if not level.has_controllers:
            self.controllers.clear()
        if not level.has_access_control:
            delta.removed_acls |= self.acls
            self.acls.clear()
            self.acl_ids.clear()
            self.scram_credentials.clear()
            delta.client_quotas |= self.client_quotas.keys()
            self.client_quotas.clear()
        if not level.has_directories:
            self._change_partitions(PartitionRegistration.without_directories, delta)

    def _change_partitions(
        self,
        change: Callable[[PartitionRegistration], PartitionRegistration],
        delta: MetadataDelta,
    ) -> None:
        for key, before in self.partitions():
            after = change(before)
            if after != before:
                self.topics[key.topic_id].partitions[key.partition] = after
                delta.partitions.setdefault(key, before)

    def _remove_topic(self, topic_id: TopicId, delta: MetadataDelta) -> None:
        topic = self.topics.pop(topic_id)
        del self.topic_ids[topic.name]
        self.configs.pop((ResourceType.TOPIC, topic.name), None)
        delta.deleted_topics[topic_id] = topic
        for index in topic.partitions:
            delta.partitions.pop(TopicIdPartition(topic_id, index), None)

    def _replay_config(self, record: ConfigRecord, delta: MetadataDelta) -> None:
        key = (record.resource_type, record.resource_name)
        values = dict(self.configs.get(key, {}))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self.configs[key] = values
        else:
            self.configs.pop(key, None)
        delta.configs.add(key)

    # --- copies ----------------------------------------------------------------------------------

    def excerpt(self, records: Iterable[Record]) -> MetadataState:
        """Return a separate state for a trial replay of ``records``.

        The excerpt has only the objects that the records refer to. It is a complete copy if one of
        the records may change any object.
        """
        twin = MetadataState()
        twin.offset, twin.epoch = self.offset, self.epoch
        twin.metadata_version, twin.features = self.metadata_version, dict(self.features)
        for record in records:
            match record:
                case PartitionRecord() | PartitionChangeRecord():
                    self._put_topic(twin, record.topic_id)
                    partition = self.partition(_key(record))
                    if partition is not None:
                        twin.topics[record.topic_id].partitions[record.partition_id] = partition
                case RemoveTopicRecord():
                    self._put_topic(twin, record.topic_id)
                case (
                    BrokerRegistrationChangeRecord()
                    | RegisterBrokerRecord()
                    | UnregisterBrokerRecord()
                ):
                    self._put_broker(twin, record.broker_id)
                case RegisterControllerRecord() | UnregisterControllerRecord():
                    if (controller := self.controllers.get(record.controller_id)) is not None:
                        twin.controllers[record.controller_id] = controller
                case ConfigRecord():
                    key = (record.resource_type, record.resource_name)
                    if (values := self.configs.get(key)) is not None:
                        twin.configs[key] = values
                case (
                    AccessControlEntryRecord()
                    | RemoveAccessControlEntryRecord()
                    | UserScramCredentialRecord()
                    | RemoveUserScramCredentialRecord()
                    | ClientQuotaRecord()
                ):
                    self._put_security(twin, record)
                case TopicRecord() | ProducerIdsRecord():
                    continue
                case _:
                    return self.copy()  # The record may change any object.
        return twin

    def _put_security(self, twin: MetadataState, record: SecurityRecord) -> None:
        if isinstance(record, AccessControlEntryRecord | RemoveAccessControlEntryRecord):
            self._put_acl(twin, record.acl_id)
            return
        if isinstance(record, ClientQuotaRecord):
            if (values := self.client_quotas.get(record.entity)) is not None:
                twin.client_quotas[record.entity] = values
            return
        key = (record.mechanism, record.name)
        if (credential := self.scram_credentials.get(key)) is not None:
            twin.scram_credentials[key] = credential

    def _put_acl(self, twin: MetadataState, acl_id: Uuid) -> None:
        if (binding := self.acls.get(acl_id)) is not None:
            twin.acls[acl_id] = binding
            twin.acl_ids[binding] = self.acl_ids[binding]

    def _put_broker(self, twin: MetadataState, broker_id: BrokerId) -> None:
        if (broker := self.brokers.get(broker_id)) is not None:
            twin.brokers[broker_id] = broker

    def _put_topic(self, twin: MetadataState, topic_id: TopicId) -> None:
        topic = self.topics.get(topic_id)
        if topic is not None and topic_id not in twin.topics:
            twin.topics[topic_id] = dataclasses.replace(topic, partitions={})
            twin.topic_ids[topic.name] = topic_id

    # --- snapshots -------------------------------------------------------------------------------

    def copy(self) -> MetadataState:
        """Return an independent copy. Copying is cheap, because the values are frozen."""
        twin = MetadataState()
        twin.offset, twin.epoch = self.offset, self.epoch
        twin.metadata_log_id = self.metadata_log_id
        twin.session_limit_ms = self.session_limit_ms
        twin.brokers = dict(self.brokers)
        twin.controllers = dict(self.controllers)
        twin.topics = {
            topic_id: dataclasses.replace(topic, partitions=dict(topic.partitions))
            for topic_id, topic in self.topics.items()
        }
        twin.topic_ids = dict(self.topic_ids)
        twin.layout = dataclasses.replace(self.layout)
        twin.configs = {key: dict(values) for key, values in self.configs.items()}
        twin.features = dict(self.features)
        twin.metadata_version = self.metadata_version
        twin.next_producer_id = self.next_producer_id
        twin.acls, twin.acl_ids = dict(self.acls), dict(self.acl_ids)
        twin.scram_credentials = dict(self.scram_credentials)
        twin.client_quotas = dict(self.client_quotas)
        return twin

    def snapshot_record_count(self) -> int:
        """Return the number of records that :meth:`snapshot_records` yields."""
        return (
            len(self.features)
            + len(self.brokers)
            + len(self.controllers)
            + len(self.topics)
            + sum(len(topic.partitions) for topic in self.topics.values())
            + sum(map(len, self.configs.values()))
            + (self.next_producer_id > 0)
            + len(self.acls)
            + len(self.scram_credentials)
            + sum(map(len, self.client_quotas.values()))
        )

    def snapshot_records(self) -> Iterator[Record]:
        """Yield records that rebuild this state when they are replayed on an empty state."""
        for name, level in self.features.items():
            record = FeatureLevelRecord(name=name, feature_level=level)
            if name == METADATA_VERSION:
                is_said = self.session_limit_ms != DEFAULT_SESSION_LIMIT_MS
                record = dataclasses.replace(
                    record,
                    metadata_log_id=self.metadata_log_id,
                    session_limit_ms=self.session_limit_ms if is_said else 0,
                )
            yield record
        for broker in self.brokers.values():
            yield broker.to_record()
        yield from self.controllers.values()
        for topic_id, topic in self.topics.items():
            yield TopicRecord(name=topic.name, topic_id=topic_id)
            for index, partition in topic.partitions.items():
                yield partition.to_record(topic_id, index)
        for (resource_type, resource_name), values in self.configs.items():
            for name, value in values.items():
                yield ConfigRecord(
                    resource_type=resource_type,
                    resource_name=resource_name,
                    name=name,
                    value=value,
                )
        if self.next_producer_id:
            yield ProducerIdsRecord(
                broker_id=BrokerId(-1),
                broker_epoch=BrokerEpoch(-1),
                next_producer_id=self.next_producer_id,
            )
        yield from self._security_records()

    def _security_records(self) -> Iterator[SecurityRecord]:
        for acl_id, binding in self.acls.items():
            yield AccessControlEntryRecord(acl_id=acl_id, binding=binding)
        for (mechanism, user), credential in self.scram_credentials.items():
            yield UserScramCredentialRecord(
                name=user,
                mechanism=mechanism,
                salt=credential.salt,
                stored_key=credential.stored_key,
                server_key=credential.server_key,
                iterations=credential.iterations,
            )
        for entity, quotas in self.client_quotas.items():
            for key, quota in quotas.items():
                yield ClientQuotaRecord(entity=entity, key=key, value=quota)


def _key(record: PartitionRecord | PartitionChangeRecord) -> TopicIdPartition:
    return TopicIdPartition(record.topic_id, record.partition_id)
