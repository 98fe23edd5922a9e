"""PURE. ``TopicControlManager``: creates, extends and deletes topics.

* Each topic of a request succeeds or fails separately. A limit on the whole request refuses all.
* If an existing topic has the id that a request asks for, the same request created it before, and
  its answer was lost.
* Topics to be extended or deleted are looked up first, so that a repeated request recognizes its
  own changes.
* Topics of coordinators are neither extended nor deleted.
* A topic is charged to its client last, when nothing else refuses it (mutation_quotas.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Final

from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.configuration_control import ConfigurationControlManager
from kraftjbod.controller.mutation_quotas import FREE, MutationCharge
from kraftjbod.controller.partitions.partition_assignment import Assignment, why_malformed
from kraftjbod.controller.partitions.replica_placer import StripedReplicaPlacer
from kraftjbod.controller.partitions.target_directories import placement_refusal
from kraftjbod.controller.quorum.controller_settings import SettingsInForce
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch, TopicId
from kraftjbod.core.text.topic_name import why_illegal
from kraftjbod.metadata.records import PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from kraftjbod.metadata.registrations import TopicRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreatePartitionsRequestRpc,
    CreatePartitionsResponseRpc,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
    DeletedTopic,
    DeleteTopicsRequestRpc,
    DeleteTopicsResponseRpc,
    FindTopicsRequest,
    FindTopicsResponse,
    FoundTopic,
    GrownTopic,
    MorePartitions,
    NewTopic,
    TopicRef,
)

Replicas = tuple[BrokerId, ...]

_MAY_COLLIDE: Final = re.compile(r"[._]")
_RESERVED_NAMES: Final = frozenset({"__cluster_metadata"})
#: Topics in which a hash modulo the number of partitions assigns groups or transactional ids to
#: partitions, and the data that would be lost with them.
_COORDINATED: Final[Mapping[str, str]] = {
    "__consumer_offsets": "what consumer groups have committed",
    "__transaction_state": "the state of every transaction",
}
_NO_TOPIC_ID: Final = TopicId(bytes(16))
#: Bytes of a topic's id that the request chooses; the rest is random.
_ASKED_ID_BYTES: Final = 12
_UNSET: Final = -1


class TopicControlManager:
    """Decides requests that create and delete topics, add partitions and find topics. Returns
    records; the replay of the records changes the metadata.
    """

    def __init__(
        self,
        *,
        state: MetadataState,
        cluster: ClusterControlManager,
        configuration: ConfigurationControlManager,
        placer: StripedReplicaPlacer,
        random_bytes: Callable[[int], bytes],
        settings: SettingsInForce,
        may_delete: bool,
    ) -> None:
        """:param placer: chooses the brokers of new partitions.
        :param may_delete: whether topics may be deleted (``delete.topic.enable``).
        """
        self._state = state
        self._cluster = cluster
        self._configuration = configuration
        self._placer = placer
        self._random_bytes = random_bytes
        self._settings = settings
        self._may_delete = may_delete

    # --- create ----------------------------------------------------------------------------------

    def create_topics(
        self, request: CreateTopicsRequestRpc, charge: MutationCharge = FREE
    ) -> ControllerResult[CreateTopicsResponseRpc]:
        self._require_few(max(len(t.assignments), self._partition_count(t)) for t in request.topics)
        named = Counter(topic.name for topic in request.topics)
        taken = self._taken_names(named)
        records: list[Record] = []
        created: list[CreatedTopic] = []
        new_replicas: Counter[BrokerId] = Counter()
        for topic, wanted_id in zip(request.topics, _requested_ids(request), strict=True):
            if (made_before := self._created_before(topic, wanted_id)) is not None:
                created.append(made_before)
                continue
            try:
                if named[topic.name] > 1:
                    raise _error(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                self._require_free_name(topic.name, taken)
                made, answer = self._create_topic(topic, wanted_id, new_replicas, charge)
            except OperatingError as e:
                created.append(
                    CreatedTopic(name=topic.name, error_code=e.code, error_message=e.message)
                )
                continue
            taken[_collision_key(topic.name)] = topic.name
            records += made
            created.append(answer)
        return ControllerResult(
            records=() if request.validate_only else tuple(records),
            response=CreateTopicsResponseRpc(
                topics=tuple(created), throttle_time_ms=charge.throttle_time_ms
            ),
        )

    def _created_before(self, topic: NewTopic, wanted_id: TopicId | None) -> CreatedTopic | None:
        made = self._state.topic(topic.name)
        if (
            made is None
            or wanted_id is None
            or _requested_id_part(made.topic_id) != _requested_id_part(wanted_id)
        ):
            return None
        return CreatedTopic(
            name=made.name,
            topic_id=made.topic_id,
            num_partitions=len(made.partitions),
            replication_factor=len(made.partitions[0].replicas),
        )

    def _taken_names(self, wanted: Iterable[str]) -> dict[str, str]:
        """Return the existing topics by collision key; empty if no name in ``wanted`` can
        collide."""
        if not any(_MAY_COLLIDE.search(name) for name in wanted):
            return {}
        return {_collision_key(name): name for name in self._state.topic_ids}

    def _partition_count(self, topic: NewTopic) -> int:
        if topic.num_partitions == _UNSET:
            return self._settings.now.num_partitions
        return topic.num_partitions

    def _require_free_name(self, name: str, taken: dict[str, str]) -> None:
        _require_legal_name(name)
        other = taken.get(_collision_key(name))
        if name in self._state.topic_ids:
            raise _error(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        if other is not None:
            raise _error(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with topic '{other}'."
            )

    def _create_topic(
        self,
        topic: NewTopic,
        wanted_id: TopicId | None,
        new_replicas: Counter[BrokerId],
        charge: MutationCharge,
    ) -> tuple[list[Record], CreatedTopic]:
        configs = self._configuration.new_topic(topic.name, topic.configs)
        replicas = self._manual(topic) if topic.assignments else self._automatic(topic)
        self._require_capacity(replicas, new_replicas)
        charge.charge(len(replicas))
        topic_id = self._new_id(wanted_id)
        records: list[Record] = [TopicRecord(name=topic.name, topic_id=topic_id), *configs]
        records += self._partition_records(topic_id, 0, replicas)
        return records, CreatedTopic(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(replicas),
            replication_factor=len(replicas[0]),
        )

    def _new_id(self, wanted_id: TopicId | None) -> TopicId:
        """Return an id that no topic ever had.

        The id begins with a part of ``wanted_id``, by which a repeated request recognizes its
        topic. If the whole id came from the request, the id would be used twice after a deletion.
        Then a broker that was down would use its old log for the new topic.
        """
        drawn = TopicId.random(self._random_bytes)
        if wanted_id is None:
            return drawn
        return TopicId(_requested_id_part(wanted_id) + drawn[_ASKED_ID_BYTES:])

    def _manual(self, topic: NewTopic) -> list[Replicas]:
        if topic.num_partitions != _UNSET or topic.replication_factor != _UNSET:
            raise _error(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but the number of partitions or "
                "the replication factor was given too.",
            )
        if sorted(topic.assignments) != list(range(len(topic.assignments))):
            raise _error(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Partitions of a manual assignment must be numbered from 0 without gaps.",
            )
        assignments = [topic.assignments[index] for index in range(len(topic.assignments))]
        self._require_assignable(assignments, 0, len(assignments[0]))
        return assignments

    def _automatic(self, topic: NewTopic) -> list[Replicas]:
        count = self._partition_count(topic)
        if count <= 0:
            raise _error(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid value."
            )
        factor = topic.replication_factor
        if factor == _UNSET:
            factor = self._settings.now.default_replication_factor
        return self._place(count, factor)

    def _place(self, count: int, replication_factor: int) -> list[Replicas]:
        try:
            return self._placer.place(
                self._cluster.usable_brokers(),
                partitions=count,
                replication_factor=replication_factor,
            )
        except OperatingError as e:
            reason = f"Unable to replicate the partition {count} time(s): {e}"
            if replication_factor > 0:
                reason += f" {self._cluster.brokers_by_use()}"
            raise _error(e.code, reason) from e

    def _partition_records(
        self, topic_id: TopicId, first: int, assignments: Sequence[Replicas]
    ) -> list[PartitionRecord]:
        """Return the records of new partitions. Active replicas are in sync, and the first of them
        leads."""
        # A topic can have ten thousand partitions, and a broker dozens of directories.
        default_dir, is_active = cache(self._cluster.default_dir), cache(self._cluster.is_active)
        return [
            PartitionRecord(
                topic_id=topic_id,
                partition_id=index,
                replicas=replicas,
                directories=tuple(map(default_dir, replicas)),
                isr=tuple(filter(is_active, replicas)),
                leader=next(filter(is_active, replicas), NO_LEADER),
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
            )
            for index, replicas in enumerate(assignments, start=first)
        ]

    def _require_assignable(
        self, assignments: Sequence[Replicas], first: int, replication_factor: int
    ) -> None:
        for index, replicas in enumerate(assignments, start=first):
            why = self._why_not_assignable(replicas, index, replication_factor)
            if why is not None:
                raise _error(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)

    def _why_not_assignable(
        self, replicas: Replicas, index: int, replication_factor: int
    ) -> str | None:
        malformed = why_malformed(replicas)
        if malformed is not None:
            return malformed
        for broker_id in replicas:
            broker = self._state.brokers.get(broker_id)
            why = "no such broker is registered" if broker is None else placement_refusal(broker)
            if why is not None:
                return f"The manual partition assignment includes broker {broker_id}, but {why}."
        if len(replicas) != replication_factor:
            return (
                f"The manual partition assignment includes a partition with {len(replicas)} "
                f"replica(s), but this is not consistent with others, which have "
                f"{replication_factor} replica(s)."
            )
        if not any(map(self._cluster.is_active, replicas)):
            return (
                f"All brokers specified in the manual partition assignment for partition {index} "
                "are fenced or in controlled shutdown."
            )
        return None

    # --- grow ------------------------------------------------------------------------------------

    def create_partitions(
        self, request: CreatePartitionsRequestRpc, charge: MutationCharge = FREE
    ) -> ControllerResult[CreatePartitionsResponseRpc]:
        self._require_few(topic.count for topic in request.topics)
        named = Counter(topic.name for topic in request.topics)
        records: list[Record] = []
        grown: list[GrownTopic] = []
        new_replicas: Counter[BrokerId] = Counter()
        for topic in request.topics:
            try:
                if named[topic.name] > 1:
                    raise _error(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                if not (request.is_repeated and self._is_grown(topic)):
                    records += self._grow_topic(topic, new_replicas, charge)
            except OperatingError as e:
                grown.append(
                    GrownTopic(name=topic.name, error_code=e.code, error_message=e.message)
                )
                continue
            grown.append(GrownTopic(name=topic.name))
        return ControllerResult(
            records=() if request.validate_only else tuple(records),
            response=CreatePartitionsResponseRpc(
                topics=tuple(grown), throttle_time_ms=charge.throttle_time_ms
            ),
        )

    def _is_grown(self, requested: MorePartitions) -> bool:
        """Return whether the topic already has the partitions that the request asks for."""
        topic = self._state.topics.get(requested.topic_id)
        if topic is None or topic.name != requested.name or len(topic.partitions) < requested.count:
            return False
        wanted = requested.assignments or ()
        if len(wanted) > requested.count:
            return False
        made = range(requested.count - len(wanted), requested.count)
        return all(
            Assignment.of_partition(topic.partitions[index]).target == replicas
            for index, replicas in zip(made, wanted, strict=True)
        )

    def _grow_topic(
        self, requested: MorePartitions, new_replicas: Counter[BrokerId], charge: MutationCharge
    ) -> list[PartitionRecord]:
        if (held := _COORDINATED.get(requested.name)) is not None:
            raise _error(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{requested.name}' cannot get more partitions: clients would be sent to "
                f"other partitions and lose {held}.",
            )
        topic = self._state.topic(requested.name)
        is_another = topic is not None and requested.topic_id not in (_NO_TOPIC_ID, topic.topic_id)
        if topic is None or is_another:
            raise _error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{requested.name}'."
            )
        present = len(topic.partitions)
        added = requested.count - present
        if added <= 0:
            raise _error(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {present} partitions, "
                f"so {requested.count} would not be an increase.",
            )
        factor = len(Assignment.of_partition(topic.partitions[0]).target)
        if requested.assignments is None:
            replicas = self._place(added, factor)
        else:
            replicas = list(requested.assignments)
            if len(replicas) != added:
                raise _error(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {added} additional partition(s), "
                    f"but {len(replicas)} assignment(s) were specified.",
                )
            self._require_assignable(replicas, present, factor)
        self._require_capacity(replicas, new_replicas)
        charge.charge(added)
        return self._partition_records(topic.topic_id, present, replicas)

    # --- find and delete -------------------------------------------------------------------------

    def find_topics(self, request: FindTopicsRequest) -> ControllerResult[FindTopicsResponse]:
        found: list[FoundTopic] = []
        for ref in request.topics:
            try:
                found.append(FoundTopic(asked=ref, topic_id=self._find_topic(ref).topic_id))
            except OperatingError as e:
                found.append(FoundTopic(asked=ref, error_code=e.code, error_message=e.message))
        return ControllerResult(response=FindTopicsResponse(topics=tuple(found)))

    def delete_topics(
        self, request: DeleteTopicsRequestRpc, charge: MutationCharge = FREE
    ) -> ControllerResult[DeleteTopicsResponseRpc]:
        """Return the records that delete topics, and an outcome per topic.

        :raises OperatingError: TOPIC_DELETION_DISABLED.
        """
        if not self._may_delete:
            raise _error(
                ErrorCode.TOPIC_DELETION_DISABLED,
                "Topic deletion is disabled: delete.topic.enable is false for the controllers.",
            )
        records: dict[TopicId, RemoveTopicRecord] = {}
        deleted: list[DeletedTopic] = []
        gone: set[TopicId] = set()
        for ref in request.topics:
            if request.is_repeated and self._is_gone(ref) and ref.topic_id not in gone:
                gone.add(ref.topic_id)
                deleted.append(DeletedTopic(name=None, topic_id=ref.topic_id))
                continue
            try:
                topic = self._find_topic(ref)
                if (held := _COORDINATED.get(topic.name)) is not None:
                    raise _error(
                        ErrorCode.INVALID_TOPIC_EXCEPTION,
                        f"Topic '{topic.name}' cannot be deleted: it holds {held}.",
                    )
                if topic.topic_id in records:
                    raise _error(ErrorCode.INVALID_REQUEST, "The topic was named twice.")
                charge.charge(len(topic.partitions))
            except OperatingError as e:
                deleted.append(
                    DeletedTopic(
                        name=ref.name,
                        topic_id=ref.topic_id,
                        error_code=e.code,
                        error_message=e.message,
                    )
                )
                continue
            records[topic.topic_id] = RemoveTopicRecord(topic_id=topic.topic_id)
            deleted.append(DeletedTopic(name=topic.name, topic_id=topic.topic_id))
        return ControllerResult(
            records=tuple(records.values()),
            response=DeleteTopicsResponseRpc(
                topics=tuple(deleted), throttle_time_ms=charge.throttle_time_ms
            ),
        )

    def _is_gone(self, ref: TopicRef) -> bool:
        return ref.name is None and ref.topic_id not in self._state.topics

    def _find_topic(self, ref: TopicRef) -> TopicRegistration:
        if ref.name is not None and ref.topic_id != _NO_TOPIC_ID:
            raise _error(ErrorCode.INVALID_REQUEST, "Name a topic by its name or its id, not both.")
        if ref.name is None:
            by_id = self._state.topics.get(ref.topic_id)
            if by_id is None:
                raise _error(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic {ref.topic_id}.")
            return by_id
        by_name = self._state.topic(ref.name)
        if by_name is None:
            raise _error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{ref.name}'.")
        return by_name

    def _require_capacity(
        self, assignments: Iterable[Replicas], new_replicas: Counter[BrokerId]
    ) -> None:
        """Require that the brokers can hold the replicas, and add them to ``new_replicas``.

        :param new_replicas: replicas by broker that the request has created so far.
        :raises OperatingError: INVALID_PARTITIONS: a broker cannot hold them.
        """
        wanted = Counter(chain.from_iterable(assignments))
        for broker_id, count in wanted.items():
            why = self._cluster.why_too_many(broker_id, new_replicas[broker_id] + count)
            if why is not None:
                raise _error(ErrorCode.INVALID_PARTITIONS, why)
        new_replicas.update(wanted)

    # --- shared ----------------------------------------------------------------------------------

    def _require_few(self, counts: Iterable[int]) -> None:
        if sum(max(count, 0) for count in counts) > self._settings.now.max_partitions_per_request:
            raise _error(
                ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."
            )


def _requested_id_part(topic_id: TopicId) -> bytes:
    return topic_id[:_ASKED_ID_BYTES]


def _requested_ids(request: CreateTopicsRequestRpc) -> Sequence[TopicId | None]:
    if len(request.topic_ids) == len(request.topics):
        return request.topic_ids
    return [None] * len(request.topics)


def _require_legal_name(name: str) -> None:
    if name in _RESERVED_NAMES:
        raise _error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"A topic cannot be called '{name}'.")
    reason = why_illegal(name)
    if reason is not None:
        raise _error(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)


def _collision_key(name: str) -> str:
    """Return the name with dots replaced by underscores, as in metric names.

    Topics with equal keys would collide there.
    """
    return name.replace(".", "_")


def _error(code: ErrorCode, message: str) -> OperatingError:
    return OperatingError(message, code=code)
