"""PURE. Configuration of daemons and topics, and every limit of the house.

Keys are Kafka's where Kafka has one; a field's key is its name with dots for underscores.
Models are frozen; a module's constructor takes the few values it needs, never the whole model.

* ``BrokerConfig`` and ``ControllerConfig`` come from a ``.properties`` file;
* ``TopicConfig`` is a broker's defaults with one topic's own values on top;
* paths become absolute here, once, so that two spellings of one directory never differ;
* unknown keys are ignored by the models, and :func:`unknown_keys` lists them for a warning;
  those that ask for security are errors (security_keys.py).
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from kraftjbod.core.config_model import (
    HOUR_MS,
    KIB,
    MAX_INT,
    MAX_LONG,
    MIB,
    KeyedModel,
    list_items,
    parse_model,
    split_list,
    unknown_keys,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.security_keys import PLAINTEXT, require_plain
from kraftjbod.core.topic_config import DEFAULT_MIN_INSYNC_REPLICAS, CleanupPolicy, TopicConfig

ALL_LOG_DIRS: Final = "*"
CORDONED_LOG_DIRS: Final = "cordoned.log.dirs"
STAR_STANDS_ALONE: Final = "When cordoned.log.dirs is set to *, it must not contain other values"
_ANY_HOST = "0.0.0.0"  # noqa: S104 - what Kafka takes an empty host for


class Endpoint(NamedTuple):
    """A listener: ``NAME://host:port``."""

    name: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        name, found, address = text.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not (found and colon and name and port.isdigit() and int(port) <= 65535):
            raise ValueError(f"{text!r} is not a listener: write NAME://host:port")
        return cls(name.upper(), host.strip("[]") or _ANY_HOST, int(port))


class Voter(NamedTuple):
    """One controller of the quorum: ``id@host:port``."""

    node_id: BrokerId
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Voter:
        node, at, address = text.strip().partition("@")
        host, colon, port = address.rpartition(":")
        if not (at and colon and host and node.isdigit() and port.isdigit()):
            raise ValueError(f"{text!r} is not a voter: write id@host:port")
        return cls(BrokerId(int(node)), host.strip("[]"), int(port))


class StorageSettings(KeyedModel):
    """What every node says about itself and its disks; all that the storage tool needs."""

    process_roles: tuple[Literal["broker", "controller"], ...]
    node_id: BrokerId = Field(ge=0)
    log_dirs: tuple[str, ...] = ()
    log_dir: tuple[str, ...] = ("/tmp/kraftjbod-logs",)  # noqa: S108 - Kafka's kind of default
    metadata_log_dir: str | None = None
    controller_quorum_voters: tuple[Voter, ...] = ()

    _base_dir: str = PrivateAttr(default="/")

    @field_validator("process_roles", "log_dirs", "log_dir", mode="before")
    @classmethod
    def _lists(cls, value: object) -> object:
        return split_list(value)

    @field_validator("controller_quorum_voters", mode="before")
    @classmethod
    def _voters(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            return tuple(Voter.parse(part) if isinstance(part, str) else part for part in parts)
        return parts

    @model_validator(mode="after")
    def _one_role(self) -> Self:
        if len(self.process_roles) != 1:
            raise ValueError("process.roles must be either broker or controller, not both")
        if len(set(self.data_dirs)) != len(self.data_dirs):
            raise ValueError("log.dirs names a directory twice")
        return self

    @classmethod
    def from_properties(cls, values: Mapping[str, str], *, source: str, base_dir: str) -> Self:
        """The settings in ``values``; relative paths are taken from ``base_dir``.

        :raises ConfigError: naming ``source`` and every key that is missing or wrong.
        """
        given: dict[str, Any] = dict(values)
        for key in ("log.dirs", "log.dir", "cordoned.log.dirs", "log.dirs.allowed.roots"):
            if key in given:
                given[key] = _absolute_dirs(given[key], base_dir)
        for key in ("metadata.log.dir", "metrics.snapshot.path", "telemetry.path"):
            if given.get(key):
                given[key] = _absolute(given[key], base_dir)
        settings = parse_model(cls, given, source)
        settings._base_dir = base_dir
        return settings

    def absolute_dirs(self, text: str) -> tuple[str, ...]:
        """A list of directories as ``log.dirs`` would have them; ``*`` stays what it is."""
        return tuple(dict.fromkeys(_absolute_dirs(text, self._base_dir)))

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """The configured log directories: ``log.dirs``, or else ``log.dir``."""
        return self.log_dirs or self.log_dir

    @property
    def metadata_dir(self) -> str:
        """``metadata.log.dir``, or else the first log directory."""
        return self.metadata_log_dir or self.data_dirs[0]


def _absolute(path: str, base_dir: str) -> str:
    normal = posixpath.normpath(posixpath.join(base_dir, path))
    # POSIX lets two leading slashes mean something of their own; no file system here does.
    return normal[1:] if normal.startswith("//") else normal


def _absolute_dirs(text: str, base_dir: str) -> tuple[str, ...]:
    return tuple(
        path if path == ALL_LOG_DIRS else _absolute(path, base_dir) for path in list_items(text)
    )


class _NodeConfig(StorageSettings):
    """What brokers and controllers have in common."""

    cluster_id: str | None = None
    """Only for checking: a node whose ``meta.properties`` says another one does not start."""
    listeners: tuple[Endpoint, ...]
    advertised_listeners: tuple[Endpoint, ...] = ()
    controller_listener_names: tuple[str, ...] = ("CONTROLLER",)
    listener_security_protocol_map: tuple[str, ...] = ()
    """``NAME:PROTOCOL``; a listener with another protocol than PLAINTEXT is refused."""
    security_inter_broker_protocol: str = PLAINTEXT

    telemetry_format: Literal["json", "console"] = "json"
    telemetry_level: Literal["debug", "info", "warning", "error"] = "info"
    telemetry_path: str | None = None
    """File that events are appended to; standard error if not set."""
    metrics_snapshot_path: str | None = None
    """File that is replaced with the daemon's figures as JSON; none is written if not set."""
    metrics_snapshot_interval_ms: int = Field(default=1000, ge=100)
    shutdown_timeout_ms: int = Field(default=30_000, ge=1)
    """Deadline of the whole orderly stop."""

    log_dir_io_timeout_ms: int = Field(default=30_000, ge=1)
    """An operation that runs longer takes its directory offline."""
    log_dir_check_interval_ms: int = Field(default=500, ge=10)
    """How often a directory proves that it still is the disk it was."""
    log_dir_io_suspect_ms: int = Field(default=2000, ge=1)
    """An operation that runs longer makes its directory STALLED until it ends; a flush, which takes
    as long as its segment is large, does so after half of ``log.dir.io.timeout.ms``."""
    log_dir_reserve_bytes: int = Field(default=40 * MIB, ge=0)
    """Size of the file that a directory gives up when its disk is full (KIP-928); 0: none."""
    log_dir_min_free_bytes: int = Field(default=0, ge=0)
    """With fewer free bytes a directory is SATURATED before its disk is full; 0: only then."""
    log_dir_heal_free_bytes: int | None = Field(default=None, ge=0)
    """Bytes above both the reserve and the minimum that must be free before a SATURATED directory
    is ONLINE again; as many as the reserve has if not set."""
    log_dir_warn_free_percent: int = Field(default=10, ge=0, le=100)
    """With less of the disk free the operator is warned; 0: never."""
    log_dir_queue_max_ops: int = Field(default=10_000, ge=1)
    log_dir_queue_max_bytes: int = Field(default=256 * MIB, ge=1)

    rpc_max_request_bytes: int = Field(default=8 * MIB, ge=KIB)
    rpc_max_in_flight: int = Field(default=1000, ge=1)
    max_connections: int = Field(default=10_000, ge=1)
    max_connections_per_ip: int = Field(default=MAX_INT, ge=0)
    max_connections_per_ip_overrides: tuple[str, ...] = ()
    """``address:count``, for addresses with another limit."""
    max_connections_reserved_for_brokers: int = Field(default=1000, ge=0)
    """The last of ``max.connections``, which only brokers get; at most half of them."""
    connections_max_idle_ms: int = Field(default=600_000, ge=1)
    queued_max_request_bytes: int = Field(default=256 * MIB, ge=MIB)
    """Requests that came, whole or in part, and are not answered; of all connections together."""
    queued_max_response_bytes: int = Field(default=256 * MIB, ge=MIB)
    """Answers that are not taken; of all connections together."""
    socket_receive_timeout_ms: int = Field(default=60_000, ge=1)
    """A request that was begun must get on within this."""
    socket_send_timeout_ms: int = Field(default=300_000, ge=1)
    """An answer must be taken on within this."""
    socket_min_progress_bytes: int = Field(default=16 * KIB, ge=1)
    """What counts as getting on within those."""
    socket_memory_grace_ms: int = Field(default=5000, ge=0)
    """When memory for requests or answers is short, the slowest go that had it for so long."""

    @field_validator("listeners", "advertised_listeners", mode="before")
    @classmethod
    def _endpoints(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            return tuple(Endpoint.parse(part) if isinstance(part, str) else part for part in parts)
        return parts

    @classmethod
    def from_properties(cls, values: Mapping[str, str], *, source: str, base_dir: str) -> Self:
        """As for every node, but nothing that asks for security is taken."""
        require_plain(values, known=cls.keys(), source=source)
        return super().from_properties(values, source=source, base_dir=base_dir)

    @field_validator("controller_listener_names", "listener_security_protocol_map", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return split_list(value)

    @field_validator("max_connections_per_ip_overrides", mode="before")
    @classmethod
    def _overrides(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            for part in parts:
                _limit_of_host(part)
        return parts

    @property
    def connection_limits_by_ip(self) -> Mapping[str, int]:
        """``max.connections.per.ip.overrides`` by numeric address."""
        return dict(map(_limit_of_host, self.max_connections_per_ip_overrides))

    @model_validator(mode="after")
    def _has_quorum(self) -> Self:
        if not self.listeners:
            raise ValueError("listeners names no address")
        if not self.controller_quorum_voters:
            raise ValueError("controller.quorum.voters names no controller: write id@host:port")
        if self.log_dir_io_suspect_ms > self.log_dir_io_timeout_ms:
            raise ValueError("log.dir.io.suspect.ms must not exceed log.dir.io.timeout.ms")
        return self


def _limit_of_host(text: str) -> tuple[str, int]:
    host, _, count = text.rpartition(":")
    try:
        return str(ip_address(host.strip().strip("[]"))), int(count)
    except ValueError as e:
        raise ValueError(f"{text!r} is no limit of an address such as 10.0.0.7:100") from e


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as e:
        raise ValueError(f"{text!r} is no address or network such as 10.0.0.0/8") from e


class ControllerConfig(_NodeConfig):
    """Configuration of a controller daemon."""

    broker_session_timeout_ms: int = Field(default=9000, ge=1)
    leader_imbalance_check_interval_seconds: int = Field(default=300, ge=1)
    auto_leader_rebalance_enable: bool = True
    unclean_leader_election_interval_ms: int = Field(default=300_000, ge=1)
    metadata_log_max_record_bytes_between_snapshots: int = Field(default=20 * MIB, ge=1)
    metadata_log_segment_bytes: int = Field(default=64 * MIB, ge=KIB)
    metadata_log_retained_entries: int = Field(default=10_000, ge=1)
    """Entries before the newest snapshot that are kept for brokers that lag."""
    metadata_log_last_room_bytes: int = Field(default=64 * KIB, ge=0)
    """What is left of a full disk, so that the controller can start again on it."""
    metadata_max_fetch_bytes: int = Field(default=8 * MIB, ge=KIB)
    metadata_max_cached_bytes: int = Field(default=32 * MIB, ge=KIB)
    controller_max_unregistered_connections: int = Field(default=500, ge=1)
    """Connections of others than registered brokers."""
    controller_max_queued_events: int = Field(default=10_000, ge=1)
    max_partitions_per_request: int = Field(default=10_000, ge=1)
    num_partitions: int = Field(default=1, ge=1)
    default_replication_factor: int = Field(default=1, ge=1)
    min_insync_replicas: int | None = Field(default=None, ge=1)
    """The whole cluster's, unless it has one already."""
    unclean_leader_election_enable: bool = False

    cluster_action_allowed_hosts: tuple[IPv4Network | IPv6Network, ...] | None = None
    """Addresses and networks that brokers may speak from; any if not set."""

    @field_validator("cluster_action_allowed_hosts", mode="before")
    @classmethod
    def _networks(cls, value: object) -> object:
        parts = split_list(value)
        if parts == ():
            raise ValueError("it names no host; remove it to let brokers speak from anywhere")
        if isinstance(parts, tuple):
            return tuple(_network(part) if isinstance(part, str) else part for part in parts)
        return parts

    @model_validator(mode="after")
    def _is_voter(self) -> Self:
        if "controller" not in self.process_roles:
            raise ValueError("process.roles must be controller for this daemon")
        if self.node_id not in {voter.node_id for voter in self.controller_quorum_voters}:
            raise ValueError(f"node.id {self.node_id} is not in controller.quorum.voters")
        if len(self.controller_quorum_voters) != 1:
            raise ValueError("controller.quorum.voters must name exactly one controller")
        return self

    @property
    def endpoint(self) -> Endpoint:
        """The listener that brokers talk to."""
        for endpoint in self.listeners:
            if endpoint.name in self.controller_listener_names:
                return endpoint
        raise ConfigError(
            f"listeners has none of controller.listener.names {self.controller_listener_names}"
        )


class DynamicBrokerConfig(KeyedModel):
    """What a broker takes over while it runs, from ConfigRecords of its own or of all brokers."""

    replica_alter_log_dirs_io_max_bytes_per_second: int = Field(default=MAX_LONG, ge=1)
    """What all moves between directories may copy together."""
    leader_replication_throttled_rate: int = Field(default=MAX_LONG, ge=1)
    """Bytes per second that throttled replicas on other brokers may fetch from here."""
    follower_replication_throttled_rate: int = Field(default=MAX_LONG, ge=1)
    """Bytes per second that throttled replicas here may fetch."""
    cordoned_log_dirs: tuple[str, ...] = ()
    """Directories that take no new replicas (KIP-1066); ``*`` for all of them."""
    min_insync_replicas: int = Field(default=DEFAULT_MIN_INSYNC_REPLICAS, ge=1)
    """Of topics that say nothing themselves. A broker's file can raise it, not lower it."""

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
        """:raises ConfigError: naming ``source`` and each key that is not dynamic, or is wrong."""
        require_plain(values, known=cls.keys(), source=source)
        fixed = unknown_keys(cls, values)
        if fixed:
            raise ConfigError(
                f"{source}: {', '.join(fixed)} cannot change while a broker runs; "
                f"{', '.join(sorted(cls.keys()))} can"
            )
        return parse_model(cls, values, source)


DYNAMIC_BROKER_KEYS: Final = DynamicBrokerConfig.keys()
#: Of those, the ones that hold lists.
DYNAMIC_LIST_KEYS: Final = frozenset({CORDONED_LOG_DIRS})


class BrokerConfig(DynamicBrokerConfig, _NodeConfig):
    """Configuration of a broker daemon."""

    broker_rack: str | None = None

    broker_heartbeat_interval_ms: int = Field(default=2000, ge=1)
    broker_session_timeout_ms: int = Field(default=9000, ge=1)
    initial_broker_registration_timeout_ms: int = Field(default=60_000, ge=1)
    log_dir_failure_timeout_ms: int = Field(default=30_000, ge=1)
    log_dirs_allowed_roots: tuple[str, ...] = ()
    """Below which directories may be added at run time; the parents of ``log.dirs`` if not set."""
    log_dir_reattach_interval_ms: int | None = Field(default=None, ge=100)
    """How often an OFFLINE directory is tried again; only when an operator asks if not set."""
    log_dir_registration_timeout_ms: int = Field(default=600_000, ge=1)
    """How long a directory that comes or goes at run time waits for a controller."""
    log_dir_slow_factor: float = Field(default=10.0, gt=1)
    """A directory is slow whose operations take this many times as long as the others'."""
    log_dir_slow_min_ms: int = Field(default=50, ge=1)
    """No directory is slow whose operations take less."""
    log_dir_slow_action: Literal["warn", "demote"] = "warn"
    """``demote``: a slow directory counts as STALLED, so that others lead, until it is faster."""
    log_dir_scrub_enable: bool = True
    log_dir_scrub_interval_ms: int = Field(default=168 * HOUR_MS, ge=1)
    """How often every cold segment is read and checked."""
    log_dir_scrub_max_bytes_per_second: int = Field(default=10 * MIB, ge=KIB)
    """What the check may read, per directory."""
    controlled_shutdown_enable: bool = True
    controlled_shutdown_timeout_ms: int = Field(default=10_000, ge=1)
    controller_request_timeout_ms: int = Field(default=2000, ge=1)

    auto_create_topics_enable: bool = True
    num_partitions: int | None = Field(default=None, ge=1)
    default_replication_factor: int | None = Field(default=None, ge=1)
    """Of topics whose creator named none; what is not set here the controller's file says."""
    unclean_leader_election_enable: bool = False
    message_max_bytes: int = Field(default=MIB + 12, ge=1)
    fetch_max_bytes: int = Field(default=55 * MIB, ge=KIB)
    socket_request_max_bytes: int = Field(default=100 * MIB, ge=KIB)
    max_in_flight_requests_per_connection: int = Field(default=100, ge=1)
    max_in_flight_bytes_per_connection: int = Field(default=32 * MIB, ge=1)

    replica_lag_time_max_ms: int = Field(default=30_000, ge=1)
    replica_fetch_wait_max_ms: int = Field(default=500, ge=1)
    replica_fetch_min_bytes: int = Field(default=1, ge=0)
    replica_fetch_max_bytes: int = Field(default=MIB, ge=1)
    replica_fetch_response_max_bytes: int = Field(default=10 * MIB, ge=1)
    replica_fetch_backoff_ms: int = Field(default=1000, ge=1)
    replica_socket_timeout_ms: int = Field(default=30_000, ge=1)
    max_incremental_fetch_session_cache_slots: int = Field(default=10_000, ge=1)
    """Fetch sessions in all (KIP-227); here only followers have some."""
    max_fetch_sessions_per_follower: int = Field(default=1000, ge=1)
    """A follower has one per directory that follows this broker."""
    replica_high_watermark_checkpoint_interval_ms: int = Field(default=5000, ge=1)

    log_segment_bytes: int = Field(default=1024 * MIB, ge=KIB)
    log_roll_hours: int = Field(default=168, ge=1)
    log_roll_ms: int | None = Field(default=None, ge=1)
    log_retention_hours: int = Field(default=168, ge=-1)
    log_retention_ms: int | None = Field(default=None, ge=-1)
    log_retention_bytes: int = Field(default=-1, ge=-1)
    log_retention_check_interval_ms: int = Field(default=300_000, ge=1)
    log_cleanup_policy: CleanupPolicy = CleanupPolicy()
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = Field(default=1, ge=1)
    log_cleaner_io_max_bytes_per_second: int = Field(default=MAX_LONG, ge=1)
    log_cleaner_dedupe_buffer_size: int = Field(default=128 * MIB, ge=MIB)
    """Bytes for the keys of one pass, all threads together."""
    log_cleaner_backoff_ms: int = Field(default=15_000, ge=1)
    log_cleaner_min_cleanable_ratio: float = Field(default=0.5, ge=0, le=1)
    log_cleaner_delete_retention_ms: int = Field(default=24 * HOUR_MS, ge=0)
    log_cleaner_min_compaction_lag_ms: int = Field(default=0, ge=0)
    log_cleaner_max_compaction_lag_ms: int = Field(default=MAX_LONG, ge=1)
    log_index_interval_bytes: int = Field(default=4096, ge=0)
    log_segment_delete_delay_ms: int = Field(default=60_000, ge=0)
    log_stray_retention_ms: int = Field(default=168 * HOUR_MS, ge=-1)
    """How long a replica is kept that the metadata does not want here; -1 for ever."""
    log_flush_interval_messages: int = Field(default=MAX_LONG, ge=1)
    log_flush_interval_ms: int | None = Field(default=None, ge=1)
    log_flush_scheduler_interval_ms: int = Field(default=1000, ge=1)
    log_flush_offset_checkpoint_interval_ms: int = Field(default=60_000, ge=1)
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    log_message_timestamp_before_max_ms: int = Field(default=MAX_LONG, ge=0)
    log_message_timestamp_after_max_ms: int = Field(default=HOUR_MS, ge=0)
    message_max_unpacked_bytes: int = Field(default=128 * MIB, ge=KIB, le=128 * MIB)
    """A compressed batch that unpacks to more is refused; no reader here opens more, either."""
    message_max_records: int = Field(default=1_000_000, ge=1)
    """A batch of more records is refused."""
    message_checking_max_bytes: int = Field(default=256 * MIB, ge=MIB)
    """Bytes of large batches, as they were sent, that may wait until their records are checked."""
    producer_id_expiration_ms: int = Field(default=86_400_000, ge=1)
    max_producer_ids_per_partition: int = Field(default=10_000, ge=1)
    """Idempotent producers that are remembered; a new one is refused while all of them have sent
    something in the last ten minutes."""
    metadata_max_fetch_bytes: int = Field(default=8 * MIB, ge=KIB)

    storage_telemetry_enable: bool = True
    """Tell ``__storage_telemetry`` about this broker's directories and replicas."""
    storage_telemetry_log_dir_interval_ms: int = Field(default=10_000, ge=100)
    """How often one record per directory is sent."""
    storage_telemetry_replica_interval_ms: int = Field(default=60_000, ge=100)
    """How often one record per replica is sent; at the directories' times only."""
    storage_telemetry_topic_partitions: int = Field(default=3, ge=1)
    """This and what follows are for the topic's creation; later it is configured as any other."""
    storage_telemetry_topic_replication_factor: int = Field(default=3, ge=1)
    storage_telemetry_topic_retention_ms: int = Field(default=168 * HOUR_MS, ge=1)
    storage_telemetry_topic_retention_bytes: int = Field(default=128 * MIB, ge=MIB)
    """Per partition. There is no value for no limit: telemetry must not be what fills a disk."""

    num_replica_alter_log_dirs_threads: int | None = Field(default=None, ge=1)
    """Threads that move replicas between directories; as many as directories if not set."""

    @field_validator("log_dirs_allowed_roots", mode="before")
    @classmethod
    def _roots(cls, value: object) -> object:
        return split_list(value)

    @field_validator("log_cleanup_policy", mode="before")
    @classmethod
    def _policy(cls, value: object) -> object:
        return CleanupPolicy.parse(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if "broker" not in self.process_roles:
            raise ValueError("process.roles must be broker for this daemon")
        self._require_own_cordons()
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
    def cordoned_dirs(self) -> tuple[str, ...]:
        """``cordoned.log.dirs`` with ``*`` spelt out."""
        is_all = ALL_LOG_DIRS in self.cordoned_log_dirs
        return self.data_dirs if is_all else self.cordoned_log_dirs

    @property
    def allowed_roots(self) -> tuple[str, ...]:
        """``log.dirs.allowed.roots``, or else the parents of the directories; never ``/`` unasked,
        which would allow everything."""
        parents = dict.fromkeys(posixpath.dirname(path) for path in self.data_dirs)
        parents.pop("/", None)
        return self.log_dirs_allowed_roots or tuple(parents)

    @property
    def advertised(self) -> tuple[Endpoint, ...]:
        """What clients are told; a wildcard host is advertised as the local host."""
        return self.advertised_listeners or tuple(
            endpoint._replace(host="127.0.0.1") if endpoint.host == _ANY_HOST else endpoint
            for endpoint in self.listeners
        )

    def topic_defaults(self) -> TopicConfig:
        """What a topic without values of its own gets."""
        retention_ms = self.log_retention_ms
        if retention_ms is None:
            hours = self.log_retention_hours
            retention_ms = -1 if hours < 0 else hours * HOUR_MS
        return TopicConfig(
            retention_ms=retention_ms,
            retention_bytes=self.log_retention_bytes,
            segment_bytes=self.log_segment_bytes,
            segment_ms=self.log_roll_ms or self.log_roll_hours * HOUR_MS,
            min_insync_replicas=max(self.min_insync_replicas, DEFAULT_MIN_INSYNC_REPLICAS),
            unclean_leader_election_enable=self.unclean_leader_election_enable,
            cleanup_policy=self.log_cleanup_policy,
            min_cleanable_dirty_ratio=self.log_cleaner_min_cleanable_ratio,
            delete_retention_ms=self.log_cleaner_delete_retention_ms,
            min_compaction_lag_ms=self.log_cleaner_min_compaction_lag_ms,
            max_compaction_lag_ms=self.log_cleaner_max_compaction_lag_ms,
            flush_messages=self.log_flush_interval_messages,
            flush_ms=self.log_flush_interval_ms or MAX_LONG,
            index_interval_bytes=self.log_index_interval_bytes,
            max_message_bytes=self.message_max_bytes,
            file_delete_delay_ms=self.log_segment_delete_delay_ms,
            message_timestamp_type=self.log_message_timestamp_type,
            message_timestamp_before_max_ms=self.log_message_timestamp_before_max_ms,
            message_timestamp_after_max_ms=self.log_message_timestamp_after_max_ms,
        )
