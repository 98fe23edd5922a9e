"""PURE. Configuration of brokers and controllers: all keys, defaults and limits.

* Keys are Kafka's where Kafka has one. A field's key is its name with dots for underscores.
* Models are frozen. A constructor of another module takes the few values it needs, never a model.
* ``BrokerConfig`` and ``ControllerConfig`` come from a ``.properties`` file. ``TopicConfig`` is a
  broker's defaults overridden by the values of one topic.
* Paths become absolute here, so that two spellings of one directory are equal everywhere else.
* The models ignore unknown keys, and :func:`unknown_keys` lists them for a warning. Keys that
  require security (security_keys.py) or must not be ignored (kafka_keys.py) are errors.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from kraftjbod.core.config_model import (
    HOUR_MS,
    KIB,
    MAX_LONG,
    MIB,
    MINUTE_MS,
    KeyedModel,
    Long,
    Short,
    parse_model,
    split_list,
)
from kraftjbod.core.dynamic_listener_config import (
    DYNAMIC_LISTENER_KEYS,
    is_dynamic_listener_key,
    require_dynamic_listeners,
    require_listener_prefix,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.group_config import GroupConfig
from kraftjbod.core.listener_config import (
    LISTENER_PREFIX,
    advertised_host,
    listener_of,
    listener_values,
    upper_names,
)
from kraftjbod.core.node_config import (
    ALL_LOG_DIRS,
    ConnectionLimitKeys,
    DynamicNodeConfig,
    Endpoint,
    NodeConfig,
)
from kraftjbod.core.node_principals import NODE_MECHANISM_KEY
from kraftjbod.core.security_keys import (
    PLAINTEXT,
    PROTOCOL_MAP,
    PROTOCOLS,
    require_plain,
)
from kraftjbod.core.topic_config import (
    BROKER_KEYS,
    DEFAULT_MIN_INSYNC_REPLICAS,
    MIN_INSYNC_REPLICAS,
    TopicConfig,
    TopicDefaults,
    require_retention,
)

RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
UNCLEAN_LEADER_ELECTION: Final = "unclean.leader.election.enable"
CORDONED_LOG_DIRS: Final = "cordoned.log.dirs"
_RETENTION: Final = "retention.ms"
_UNITS_MS: Final = {"minutes": MINUTE_MS, "hours": HOUR_MS}
STAR_STANDS_ALONE: Final = "When cordoned.log.dirs is set to *, it must not contain other values"


class DynamicControllerConfig(DynamicNodeConfig):
    """Keys of a controller that can change while it runs, by ConfigRecords for this node or for all
    nodes.
    """

    broker_session_timeout_ms: int = Field(default=9000, ge=1)
    """A broker that sends no heartbeat for this long is fenced, and its leaders move. At least two
    heartbeats of each broker have to fit into it. After a change of controllers, a session lasts as
    long as any controller announced, and controller.quorum.election.timeout.ms more."""
    broker_reconnect_grace_ms: int = Field(default=1000, ge=0)
    """A broker is also fenced when its process closed its connection to the active controller, as a
    dying process does, and either opens no new connection for this long or has an address that
    refuses connections; 0: never."""
    leader_imbalance_check_interval_seconds: Long = Field(default=300, ge=1)
    """How often leadership is moved back to preferred replicas."""
    auto_leader_rebalance_enable: bool = True
    """Whether leadership moves back to preferred replicas automatically."""
    unclean_leader_election_interval_ms: Long = Field(default=300_000, ge=1)
    """How often partitions without a leader are checked if their topics allow unclean leaders."""
    metadata_log_max_record_bytes_between_snapshots: Long = Field(default=20 * MIB, ge=1)
    """A snapshot of the metadata is written after this many bytes of records."""
    metadata_max_fetch_bytes: int = Field(default=8 * MIB, ge=KIB)
    """Largest answer with metadata to one broker."""
    max_partitions_per_request: int = Field(default=10_000, ge=1)
    """Partitions that one request may create."""
    num_partitions: int = Field(default=1, ge=1)
    """Default number of partitions of a new topic."""
    default_replication_factor: int = Field(default=1, ge=1)
    """Default replication factor of a new topic."""
    unclean_leader_election_enable: bool = False
    """Default of the topic key ``unclean.leader.election.enable``: whether a replica that lost data
    may lead when no other replica can."""


DYNAMIC_CONTROLLER_KEYS: Final = DynamicControllerConfig.keys()


class ControllerConfig(DynamicControllerConfig, NodeConfig):
    """Configuration of a controller daemon."""

    metadata_log_segment_bytes: int = Field(default=64 * MIB, ge=KIB)
    """A segment file of the metadata log is closed at this size."""
    metadata_log_retained_entries: int = Field(default=10_000, ge=1)
    """Entries before the newest snapshot that are kept for lagging brokers and controllers."""
    metadata_log_min_free_bytes: int = Field(default=64 * KIB, ge=0)
    """Free bytes that the controller leaves on a full disk, so that it can start again there."""
    metadata_max_cached_bytes: int = Field(default=32 * MIB, ge=KIB)
    """Newest bytes of the metadata log that are kept in memory for brokers that keep up."""
    controller_max_unregistered_connections: int = Field(default=500, ge=1)
    """Limit of connections of clients that are not registered brokers."""
    controller_max_queued_events: int = Field(default=10_000, ge=1)
    """Requests that may wait for their entry in the metadata log; beyond, new ones are refused."""
    min_insync_replicas: int | None = Field(default=None, ge=1)
    """Written as the cluster's value, unless the cluster has a value already."""
    delete_topic_enable: bool = True
    """Whether topics may be deleted."""

    controller_quorum_election_timeout_ms: int = Field(default=1000, ge=100)
    """The other controllers treat an active controller as dead when it was silent for this long, or
    up to twice as long. An active controller that hears no majority of the voters for this long
    resigns. A closed connection is noticed at once."""
    controller_quorum_request_timeout_ms: int = Field(default=2000, ge=1)
    """After this time without an answer, a controller reconnects to another controller."""
    controller_quorum_max_queued_messages: int = Field(default=1000, ge=1)
    """Messages that may wait for one of the other controllers; the oldest are dropped, and that
    controller asks for them again."""
    controller_quorum_max_queued_bytes: int = Field(default=16 * MIB, ge=MIB)
    """Bytes of messages that may wait for one of the other controllers; the oldest are dropped."""

    @model_validator(mode="after")
    def _is_voter(self) -> Self:
        if "controller" not in self.process_roles:
            raise ValueError("process.roles must be controller for this daemon")
        voters = {voter.node_id for voter in self.controller_quorum_voters}
        if voters and self.node_id not in voters:
            raise ValueError(f"node.id {self.node_id} is not in controller.quorum.voters")
        return self

    @property
    def controller_listener(self) -> str:
        return self.endpoint.name

    @property
    def endpoint(self) -> Endpoint:
        """The first listener that ``controller.listener.names`` names. Brokers and other
        controllers use it.

        :raises ConfigError: ``listeners`` has no such listener.
        """
        for endpoint in self.listeners:
            if endpoint.name in self.controller_listener_names:
                return endpoint
        raise ConfigError(
            f"listeners has none of controller.listener.names {self.controller_listener_names}"
        )

    @property
    def advertised_endpoint(self) -> Endpoint:
        """Address at which other nodes reach this controller.

        The source is ``advertised.listeners``, else ``controller.quorum.voters``, else
        ``listeners``, whose host 0.0.0.0 becomes ``localhost`` and whose host ``::`` becomes
        ``::1``.
        """
        endpoint = self.endpoint
        named = [said for said in self.advertised_listeners if said.name == endpoint.name]
        if named:
            return named[0]
        voters = [v for v in self.controller_quorum_voters if v.node_id == self.node_id]
        if voters:
            return Endpoint(endpoint.name, voters[0].host, voters[0].port)
        host = advertised_host(endpoint.host, ipv4_loopback="localhost")
        return endpoint._replace(host=host)


class DynamicBrokerConfig(DynamicNodeConfig, ConnectionLimitKeys, TopicDefaults):
    """Keys of a broker that can change while it runs, by ConfigRecords for this node or for all
    brokers.
    """

    replica_alter_log_dirs_io_max_bytes_per_second: Long = Field(default=MAX_LONG, ge=1)
    """Bytes per second that all moves between directories may copy together."""
    leader_replication_throttled_rate: Long = Field(default=MAX_LONG, ge=1)
    """Bytes per second that throttled replicas on other brokers may fetch from here."""
    follower_replication_throttled_rate: Long = Field(default=MAX_LONG, ge=1)
    """Bytes per second that throttled replicas here may fetch."""
    cordoned_log_dirs: tuple[str, ...] = ()
    """Directories that take no new replicas (KIP-1066); ``*`` for all of them."""
    min_insync_replicas: int = Field(default=DEFAULT_MIN_INSYNC_REPLICAS, ge=1)
    """Default of the topic key ``min.insync.replicas``. The cluster's value in the metadata has
    precedence over this node's file. Without one, a file can raise the default, but not lower
    it."""

    @field_validator("cordoned_log_dirs", mode="before")
    @classmethod
    def _cordons(cls, value: object) -> object:
        return split_list(value)

    @model_validator(mode="after")
    def _all_or_some(self) -> Self:
        if ALL_LOG_DIRS in self.cordoned_log_dirs and len(self.cordoned_log_dirs) > 1:
            raise ValueError(STAR_STANDS_ALONE)
        return self

    @classmethod
    def from_values(cls, values: Mapping[str, str], *, source: str) -> Self:
        """Parse the dynamic configuration of a broker.

        :raises ConfigError: naming ``source`` and the keys that concern security, are not dynamic,
            or have an invalid value. Only the first of these kinds is reported.
        """
        require_dynamic(values, cls, source=source)
        return parse_model(cls, values, source)


def require_dynamic(
    values: Mapping[str, str], *models: type[KeyedModel], source: str, node: str = "broker"
) -> None:
    """Raise an error unless ``values`` are valid values of keys that can change at run time.

    :param models: models with the dynamic keys of a node; each key has to belong to one of them.
    :param node: kind of the node, for the error message.
    :raises ConfigError: naming ``source`` and the keys that concern security, are not dynamic, or
        have a wrong value. Only the first of these kinds is reported.
    """
    known = frozenset[str]().union(*(model.keys() for model in models))
    if DynamicBrokerConfig in models:
        of_listeners = {key: values[key] for key in values if is_dynamic_listener_key(key)}
        require_listener_prefix(values, source=source)
        require_dynamic_listeners(of_listeners, source=source)
        known |= of_listeners.keys()
    require_plain(values, known=known, source=source)
    fixed = sorted(values.keys() - known)
    if fixed:
        raise ConfigError(
            f"{source}: {', '.join(fixed)} cannot change while a {node} runs; "
            f"{', '.join(sorted(_changeable(models)))} can"
        )
    for model in models:
        keys = model.keys()
        parse_model(model, {key: values[key] for key in values if key in keys}, source)


def _changeable(models: Collection[type[KeyedModel]]) -> frozenset[str]:
    keys = frozenset[str]().union(*(model.keys() for model in models))
    if DynamicBrokerConfig not in models:
        return keys
    return keys.union(f"{LISTENER_PREFIX}NAME.{key}" for key in DYNAMIC_LISTENER_KEYS)


DYNAMIC_BROKER_KEYS: Final = DynamicBrokerConfig.keys()
#: The dynamic broker keys whose values are lists.
DYNAMIC_LIST_KEYS: Final = frozenset({CORDONED_LOG_DIRS})


class BrokerConfig(DynamicBrokerConfig, GroupConfig, NodeConfig):
    """Configuration of a broker daemon."""

    broker_rack: str | None = None
    """New replicas of a partition are spread over racks."""

    audit_log_path: str | None = None
    """File to which refused checks of the authorizer, and administrative acts, are written as JSON,
    one per line. If not set: they are not recorded."""
    audit_log_max_bytes: Long = Field(default=100 * MIB, ge=KIB)
    """Size at which the audit file is rotated."""
    audit_log_max_files: int = Field(default=10, ge=1, le=1000)
    """Rotated audit files that are kept."""
    inter_broker_listener_name: str | None = None
    """Name of the listener for requests between brokers. If not set: the listener whose name is
    ``security.inter.broker.protocol``, or else the first one with that protocol."""
    broker_heartbeat_interval_ms: int = Field(default=2000, ge=1)
    """How often this broker sends a heartbeat to the active controller."""
    broker_session_timeout_ms: int = Field(default=9000, ge=1)
    """Length of this broker's session until a controller announces one; at least two heartbeats
    have to fit into it."""
    initial_broker_registration_timeout_ms: int = Field(default=60_000, ge=1)
    """A broker stops if it could not register and load the metadata within this time."""
    log_dir_failure_timeout_ms: Long = Field(default=30_000, ge=1)
    """A broker that leads partitions on a dead directory stops if no controller takes its report of
    the failure within this time."""
    log_dirs_allowed_roots: tuple[str, ...] = ()
    """Directories below which an operator may add log directories at run time. If not set: the
    parents of ``log.dirs``."""
    log_dir_reattach_interval_ms: int | None = Field(default=None, ge=100)
    """How often the broker tries to reattach an OFFLINE directory. If not set: only when an
    operator asks for it."""
    log_dir_registration_timeout_ms: int = Field(default=600_000, ge=1)
    """How long the broker waits for a controller when a directory is added, reattached or removed
    at run time."""
    log_dir_slow_factor: float = Field(default=10.0, gt=1)
    """A directory is slow if its operations take this many times as long as those of the broker's
    other directories."""
    log_dir_slow_min_ms: int = Field(default=50, ge=1)
    """A directory whose operations take less than this is never slow."""
    log_dir_slow_action: Literal["warn", "demote"] = "warn"
    """``demote``: a slow directory is STALLED until it is faster, so that other replicas lead."""
    log_dir_scrub_enable: bool = True
    """Whether cold segments are read and checked."""
    log_dir_scrub_interval_ms: Long = Field(default=168 * HOUR_MS, ge=1)
    """How often every cold segment is read and checked."""
    log_dir_scrub_max_bytes_per_second: Long = Field(default=10 * MIB, ge=KIB)
    """Bytes per second that the check may read in each directory."""
    controlled_shutdown_enable: bool = True
    """Whether leaders are moved to other brokers before the daemon stops."""
    controlled_shutdown_timeout_ms: int = Field(default=10_000, ge=1)
    """How long a stop waits until the leaders have moved away."""
    controller_request_timeout_ms: int = Field(default=2000, ge=1)
    """How long one request to the controller may take before it is tried again."""

    auto_create_topics_enable: bool = True
    """A topic is created when a client first asks for it."""
    delete_topic_enable: bool = True
    """Whether clients of this broker may delete topics; the controllers' files count as well."""
    num_partitions: int | None = Field(default=None, ge=1)
    """Default number of partitions of a new topic. If not set: the controller's value."""
    default_replication_factor: int | None = Field(default=None, ge=1)
    """Default replication factor of a new topic. If not set: the controller's value."""
    unclean_leader_election_enable: bool = False
    """Use the value of the controllers' files, which decide elections."""
    max_request_partition_size_limit: int = Field(default=2000, ge=1)
    """Partitions that DescribeTopicPartitions describes at once; it continues by a cursor."""
    fetch_max_bytes: int = Field(default=55 * MIB, ge=KIB)
    """Largest answer to a fetch; a client may ask for less. One batch is always returned, even if
    it is larger."""
    socket_request_max_bytes: int = Field(default=100 * MIB, ge=KIB)
    """Largest request of a client."""
    max_in_flight_requests_per_connection: int = Field(default=100, ge=1)
    """Requests of one connection that are processed at once."""
    max_in_flight_bytes_per_connection: int = Field(default=32 * MIB, ge=1)
    """Bytes of requests of one connection that are processed at once."""

    replica_selector_class: str | None = None
    """Chooses the replica that a consumer with a rack reads (KIP-392); use the same value on all
    brokers: ``org.apache.kafka.common.replica.RackAwareReplicaSelector`` for the nearest. If not
    set: the leader."""
    replica_lag_time_max_ms: Long = Field(default=30_000, ge=1)
    """A follower that has not caught up for this long leaves the in-sync set."""
    replica_fetch_wait_max_ms: int = Field(default=500, ge=1)
    """How long a leader may hold a follower's fetch while there are no new records."""
    replica_fetch_min_bytes: int = Field(default=1, ge=0)
    """The leader answers a follower's fetch earlier when this many bytes are available."""
    replica_fetch_max_bytes: int = Field(default=MIB, ge=1)
    """Bytes of one partition that a follower requests at once; one batch is always returned."""
    replica_fetch_response_max_bytes: int = Field(default=10 * MIB, ge=1)
    """Bytes of all partitions that a follower requests at once."""
    replica_fetch_backoff_ms: int = Field(default=1000, ge=1)
    """How long a follower waits after a failed fetch."""
    replica_socket_timeout_ms: int = Field(default=30_000, ge=1)
    """How long a follower waits for an answer."""
    max_incremental_fetch_session_cache_slots: int = Field(default=10_000, ge=1)
    """Limit of fetch sessions (KIP-227); followers have priority, and consumers can fetch without a
    session."""
    max_fetch_session_partitions: int = Field(default=200_000, ge=1)
    """Limit of partitions in all sessions of consumers, half a kilobyte each."""
    max_fetch_sessions_per_follower: int = Field(default=1000, ge=1)
    """Limit of fetch sessions of one broker, which has a session for each of its directories that
    follows this broker."""
    replica_high_watermark_checkpoint_interval_ms: Long = Field(default=5000, ge=1)
    """How often high watermarks are written to disk."""

    log_roll_hours: int = Field(default=168, ge=1)
    """Used if ``log.roll.ms`` is not set: the same in hours."""
    log_retention_minutes: int | None = None
    """Used if ``log.retention.ms`` is not set: the same in minutes; less than 0: unlimited."""
    log_retention_hours: int = 168
    """Used if neither ``log.retention.ms`` nor ``log.retention.minutes`` is set: the same in hours;
    less than 0: unlimited."""
    log_roll_jitter_hours: int = Field(default=0, ge=0)
    """Used if ``log.roll.jitter.ms`` is not set: the same in hours."""
    log_retention_check_interval_ms: Long = Field(default=300_000, ge=1)
    """How often retention is applied; in a full directory every few seconds."""
    log_cleaner_enable: bool = True
    """Whether topics with ``cleanup.policy=compact`` are compacted."""
    log_cleaner_threads: int = Field(default=1, ge=1)
    """Directories that are compacted at once."""
    log_cleaner_io_max_bytes_per_second: float = Field(default=sys.float_info.max, ge=1)
    """Bytes per second that all cleaner threads may read and write together."""
    log_cleaner_dedupe_buffer_size: Long = Field(default=128 * MIB, ge=MIB)
    """Memory for the keys of one pass, of all cleaner threads together."""
    log_cleaner_backoff_ms: Long = Field(default=15_000, ge=1)
    """How long a cleaner sleeps after it found no log to compact."""
    log_index_cache_bytes: int = Field(default=256 * MIB, ge=KIB)
    """Bytes of segments' indexes that are kept in memory, divided among the directories. The
    indexes of a 1 GiB segment take up to 5 MiB. Indexes of active segments always stay in memory,
    even beyond the limit."""
    log_open_segments_max: int = Field(default=0, ge=0)
    """Segments whose file is kept open, divided among the directories; the least recently used are
    closed. 0: three quarters of the open files that the process may have, less 128."""
    log_stray_retention_ms: Long = Field(default=168 * HOUR_MS, ge=-1)
    """How long a stray replica, which the metadata does not assign to this broker, is kept; -1:
    unlimited."""
    log_flush_scheduler_interval_ms: Long = Field(default=1000, ge=1)
    """How often the broker checks which logs have to be flushed because of ``flush.ms``."""
    log_flush_offset_checkpoint_interval_ms: int = Field(default=60_000, ge=1)
    """How often recovery points are written to disk."""
    message_max_unpacked_bytes: int = Field(default=128 * MIB, ge=KIB, le=128 * MIB)
    """A compressed batch that unpacks to more bytes is refused; consumers and tools of this project
    have the same limit."""
    message_max_records: int = Field(default=1_000_000, ge=1)
    """A batch with more records is refused."""
    message_checking_max_bytes: Long = Field(default=256 * MIB, ge=MIB)
    """Bytes of large batches, as they were sent, that may wait until their records are checked."""
    request_timeout_ms: int = Field(default=30_000, ge=1)
    """How long the replication of a transaction marker may take, before its coordinator is answered
    with an error."""
    add_partitions_to_txn_retry_backoff_ms: int = Field(default=20, ge=1)
    """How long a partition's leader waits before it asks the coordinator again to verify a
    transaction, while the producer's previous transaction is ending."""
    add_partitions_to_txn_retry_backoff_max_ms: int = Field(default=100, ge=0)
    """After this time the leader stops asking, and answers the producer with a retriable error."""
    producer_id_expiration_ms: int = Field(default=86_400_000, ge=1)
    """An idempotent producer that sends nothing for this long is forgotten."""
    max_producer_ids_per_partition: int = Field(default=10_000, ge=1)
    """Idempotent producers that a partition remembers; a new producer is refused while all of them
    have sent something in the last ten minutes."""
    producer_snapshot_interval_bytes: int = Field(default=16 * MIB, ge=KIB)
    """After this many bytes of a log, the state of its idempotent producers is written to a
    snapshot file; after more bytes if there are more than some thousand producers. A truncation
    reads at most this many bytes again. Each new segment also gets a snapshot."""
    metadata_max_fetch_bytes: int = Field(default=8 * MIB, ge=KIB)
    """Bytes of metadata that this broker requests at once."""

    storage_telemetry_enable: bool = True
    """Send samples of this broker's directories and replicas to ``__storage_telemetry``."""
    storage_telemetry_log_dir_interval_ms: int = Field(default=10_000, ge=100)
    """How often one record per directory is sent."""
    storage_telemetry_replica_interval_ms: int = Field(default=60_000, ge=100)
    """How often one record per replica is sent; always together with records of directories."""
    storage_telemetry_topic_partitions: int = Field(default=3, ge=1)
    """Partitions of the topic. This key and the next three apply when the topic is created; later
    the topic is configured like any other."""
    storage_telemetry_topic_replication_factor: int = Field(default=3, ge=1)
    """Replicas of each partition. If fewer brokers stay alive for some rounds, the topic is created
    with fewer replicas."""
    storage_telemetry_topic_retention_ms: Long = Field(default=168 * HOUR_MS, ge=1)
    """How long the topic's records are kept."""
    storage_telemetry_topic_retention_bytes: Long = Field(default=128 * MIB, ge=MIB)
    """Size limit of each partition. It cannot be unlimited, so that telemetry never fills a disk.
    """

    transaction_max_timeout_ms: int = Field(default=900_000, ge=1)
    """A producer may not ask for a longer time-out of its transactions."""
    transactional_id_expiration_ms: int = Field(default=604_800_000, ge=1)
    """A transactional id that no producer uses for this long is forgotten."""
    transaction_max_ids_per_partition: int = Field(default=100_000, ge=1)
    """Transactional ids of one partition of ``__transaction_state``; beyond it a new id is refused.
    """
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = Field(default=10_000, ge=1)
    """How often the coordinator searches for transactions that exceed their time-out."""
    transaction_remove_expired_transaction_cleanup_interval_ms: int = Field(default=HOUR_MS, ge=1)
    """How often the coordinator searches for expired transactional ids."""
    transaction_state_log_load_buffer_size: int = Field(default=5 * MIB, ge=KIB)
    """Bytes that are read at once when a broker takes over transactions."""
    transaction_state_log_write_timeout_ms: int = Field(default=5_000, ge=1)
    """How long the replication of a coordinator's record to all in-sync replicas may take."""
    transaction_state_log_num_partitions: int = Field(default=50, ge=1)
    """Partitions of ``__transaction_state``. This key and the next three apply when the topic is
    created, at the first request of a transactional producer. Later the topic can neither get more
    partitions nor be deleted."""
    transaction_state_log_replication_factor: Short = Field(default=3, ge=1)
    """Replicas of each partition; until this many brokers are alive, the topic is not created, and
    transactions wait."""
    transaction_state_log_min_isr: int = Field(default=2, ge=1)
    """``min.insync.replicas`` of the topic."""
    transaction_state_log_segment_bytes: int = Field(default=100 * MIB, ge=KIB)
    """Segment size of the topic; small segments are compacted soon, so that the topic loads fast.
    """

    num_replica_alter_log_dirs_threads: int | None = Field(default=None, ge=1)
    """Threads that move replicas between directories; as many as directories if not set."""

    @field_validator("inter_broker_listener_name", mode="before")
    @classmethod
    def _name(cls, value: object) -> object:
        return upper_names(value)

    @field_validator("log_retention_minutes", "log_retention_hours")
    @classmethod
    def _retention(cls, value: int | None) -> int | None:
        return require_retention(value)

    @field_validator("replica_selector_class")
    @classmethod
    def _selector(cls, value: str | None) -> str | None:
        if value and value != RACK_AWARE_SELECTOR:
            raise ValueError(f"{value} is not known here: {RACK_AWARE_SELECTOR} is, or nothing")
        return value or None

    @field_validator("log_dirs_allowed_roots", mode="before")
    @classmethod
    def _roots(cls, value: object) -> object:
        return split_list(value)

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if "broker" not in self.process_roles:
            raise ValueError("process.roles must be broker for this daemon")
        self._require_client_listeners()
        self._require_own_cordons()
        wanted = self.inter_broker_listener_name
        if wanted is not None and wanted not in self._listener_names:
            raise ValueError(
                f"inter.broker.listener.name is {wanted}, which advertised.listeners does not have"
            )
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise ValueError(
                "queued.max.request.bytes must not be less than socket.request.max.bytes"
            )
        if self.broker_heartbeat_interval_ms * 2 > self.broker_session_timeout_ms:
            raise ValueError(
                "broker.session.timeout.ms must be at least twice broker.heartbeat.interval.ms"
            )
        if self.replica_fetch_wait_max_ms > self.replica_lag_time_max_ms:
            raise ValueError("replica.fetch.wait.max.ms must not exceed replica.lag.time.max.ms")
        if self.replica_fetch_wait_max_ms > self.replica_socket_timeout_ms:
            raise ValueError("replica.fetch.wait.max.ms must not exceed replica.socket.timeout.ms")
        if self.storage_telemetry_replica_interval_ms < self.storage_telemetry_log_dir_interval_ms:
            raise ValueError(
                "storage.telemetry.replica.interval.ms must not be less than "
                "storage.telemetry.log.dir.interval.ms"
            )
        return self

    def _require_client_listeners(self) -> None:
        for endpoint in self.listeners:
            if endpoint.name in self.controller_listener_names:
                raise ValueError(
                    f"listeners has {endpoint.name}, which controller.listener.names reserves for "
                    "controllers: rename the listener of this broker"
                )
        protocols = {one.name: self.protocol_of(one.name) for one in self.listeners}
        mapped = {
            item.partition(":")[0].strip().upper() for item in self.listener_security_protocol_map
        }
        for name in protocols:
            if set(protocols.values()) != {PLAINTEXT} and name not in mapped.union(PROTOCOLS):
                raise ValueError(
                    f"{PROTOCOL_MAP} has no entry for {name}, and another listener is secure: add "
                    f"{name}:PLAINTEXT or {name}:SASL_SSL"
                )
        wanted = self.security_inter_broker_protocol
        if wanted not in protocols.values() and self.inter_broker_listener_name is None:
            raise ValueError(
                f"listeners has no listener whose protocol is {wanted}, the value of "
                "security.inter.broker.protocol: name the one by which "
                "brokers speak to each other in inter.broker.listener.name"
            )

    def _require_own_cordons(self) -> None:
        if ALL_LOG_DIRS in self.cordoned_log_dirs:
            return
        missing = [path for path in self.cordoned_log_dirs if path not in self.data_dirs]
        if missing:
            raise ValueError(
                "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
                f"Missing entries : {', '.join(missing)}"
            )

    @property
    def node_listeners(self) -> tuple[str, ...]:
        return (self.controller_listener, self.inter_broker_listener)

    @property
    def _listener_names(self) -> list[str]:
        return [endpoint.name for endpoint in self.advertised]

    @property
    def inter_broker_listener(self) -> str:
        """Name of the listener for requests between brokers."""
        if self.inter_broker_listener_name is not None:
            return self.inter_broker_listener_name
        wanted = self.security_inter_broker_protocol
        fitting = (one.name for one in self.listeners if self.protocol_of(one.name) == wanted)
        return wanted if wanted in self._listener_names else next(fitting)

    @property
    def node_mechanisms(self) -> Mapping[str, tuple[str, str]]:
        mechanism = self.sasl_mechanism_inter_broker_protocol
        own = {self.inter_broker_listener: (NODE_MECHANISM_KEY, mechanism)}
        return {**own, **super().node_mechanisms}

    @property
    def cordoned_dirs(self) -> tuple[str, ...]:
        """``cordoned.log.dirs``, with ``*`` replaced by all log directories."""
        is_all = ALL_LOG_DIRS in self.cordoned_log_dirs
        return self.data_dirs if is_all else self.cordoned_log_dirs

    @property
    def allowed_roots(self) -> tuple[str, ...]:
        """``log.dirs.allowed.roots``. If it is not set, the parents of the log directories.

        ``/`` is never a default, because it would allow every path.
        """
        parents = dict.fromkeys(posixpath.dirname(path) for path in self.data_dirs)
        parents.pop("/", None)
        return self.log_dirs_allowed_roots or tuple(parents)

    @property
    def advertised(self) -> tuple[Endpoint, ...]:
        """Addresses that clients receive: ``advertised.listeners``, or ``listeners`` if that is not
        set.

        In ``listeners``, an empty host or 0.0.0.0 is advertised as 127.0.0.1, ``::`` as ``::1``,
        and any other host as it is.
        """
        return self.advertised_listeners or tuple(
            endpoint._replace(host=advertised_host(endpoint.host, ipv4_loopback="127.0.0.1"))
            for endpoint in self.listeners
        )

    def with_dynamic(self, dynamic: DynamicBrokerConfig, of_listeners: Mapping[str, str]) -> Self:
        """Return this configuration with the dynamic values of the broker and of its listeners.

        :param of_listeners: values by full key, with secrets instead of references. Values of
            listeners that this node does not have are left out.
        """
        fields = DynamicBrokerConfig.model_fields
        changed = self.model_copy(update={name: getattr(dynamic, name) for name in fields})
        names = self.known_listeners
        known = {key: of_listeners[key] for key in of_listeners if listener_of(key) in names}
        own = listener_values(
            known, DYNAMIC_LISTENER_KEYS, listeners=names, source="dynamic configuration"
        )
        changed._listener_values = {
            name: {**self._listener_values.get(name, {}), **own.get(name, {})}
            for name in {*self._listener_values, *own}
        }
        return changed

    def topic_defaults(self, dynamic: DynamicBrokerConfig | None = None) -> TopicConfig:
        """Return the configuration of a topic without overrides.

        :param dynamic: the broker's present dynamic values, which override the file's, except for
            ``min.insync.replicas``: that is the file's value, but at least 2.
        """
        values = {**self.by_key(), **({} if dynamic is None else dynamic.by_key())}
        defaults: dict[str, Any] = {}
        for key, broker_keys in BROKER_KEYS.items():
            for broker_key in broker_keys:
                value = values[broker_key]
                if value is not None:
                    unit_ms = _UNITS_MS.get(broker_key.rpartition(".")[2])
                    defaults[key] = value if unit_ms is None else value * unit_ms
                    break
        defaults[_RETENTION] = max(defaults[_RETENTION], -1)
        least = DEFAULT_MIN_INSYNC_REPLICAS
        defaults[MIN_INSYNC_REPLICAS] = max(self.min_insync_replicas, least)
        return TopicConfig.model_validate(defaults)
