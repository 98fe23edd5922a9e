"""PURE. Configuration of topics: a broker's defaults, overridden by the values of one topic.

Keys are Kafka's topic-level names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, field_validator

from kraftjbod.core.config_model import (
    HOUR_MS,
    KIB,
    MAX_LONG,
    MIB,
    KeyedModel,
    Long,
    list_items,
    nearest_hint,
    parse_model,
    stored_values,
    unknown_keys,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import BrokerId


class ThrottledReplicas(NamedTuple):
    """Parsed value of a throttle key of a topic: the replicas whose replication is throttled.

    The text is ``partition:broker,...``, ``*`` for every replica, or empty.
    """

    is_all: bool = False
    replicas: frozenset[tuple[int, int]] = frozenset()
    """Pairs of partition and broker."""

    @classmethod
    def parse(cls, text: str) -> ThrottledReplicas:
        if text.strip() == "*":
            return cls(is_all=True)
        pairs = []
        for part in list_items(text):
            partition, colon, broker = part.partition(":")
            if not (colon and partition.isdigit() and broker.isdigit()):
                raise ValueError(f"{part!r} is no throttled replica: write partition:broker, or *")
            pairs.append((int(partition), int(broker)))
        return cls(replicas=frozenset(pairs))

    def __str__(self) -> str:
        return "*" if self.is_all else ",".join(f"{p}:{b}" for p, b in sorted(self.replicas))

    def holds(self, partition: int, broker_id: BrokerId) -> bool:
        return self.is_all or (partition, broker_id) in self.replicas


class CleanupPolicy(NamedTuple):
    """Value of ``cleanup.policy``: ``delete``, ``compact``, both, or empty."""

    is_delete: bool = True
    is_compact: bool = False

    @classmethod
    def parse(cls, text: str) -> CleanupPolicy:
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        if not {"delete", "compact"}.issuperset(parts):
            raise ValueError(
                f"{text!r} is no cleanup policy: write delete, compact, both, or nothing"
            )
        return cls("delete" in parts, "compact" in parts)

    def __str__(self) -> str:
        return ",".join(["compact"] * self.is_compact + ["delete"] * self.is_delete)

    @property
    def allows_record_deletion(self) -> bool:
        """Whether DeleteRecords is allowed: False if records are only compacted."""
        return self.is_delete or not self.is_compact


#: Topic keys whose values are lists, so that single items can be appended and subtracted.
TOPIC_LIST_KEYS: Final = frozenset(
    {
        "cleanup.policy",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)


#: Broker keys that set the default of a topic key, in order of precedence. The last part of a key's
#: name says whether its value is in minutes or hours.
BROKER_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "retention.bytes": ("log.retention.bytes",),
    "segment.bytes": ("log.segment.bytes",),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
    "min.insync.replicas": ("min.insync.replicas",),
    "unclean.leader.election.enable": ("unclean.leader.election.enable",),
    "cleanup.policy": ("log.cleanup.policy",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "delete.retention.ms": ("log.cleaner.delete.retention.ms",),
    "min.compaction.lag.ms": ("log.cleaner.min.compaction.lag.ms",),
    "max.compaction.lag.ms": ("log.cleaner.max.compaction.lag.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms",),
    "index.interval.bytes": ("log.index.interval.bytes",),
    "max.message.bytes": ("message.max.bytes",),
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "compression.type": ("compression.type",),
    "compression.gzip.level": ("compression.gzip.level",),
    "compression.lz4.level": ("compression.lz4.level",),
    "compression.zstd.level": ("compression.zstd.level",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "preallocate": ("log.preallocate",),
    "local.retention.ms": ("log.local.retention.ms",),
    "local.retention.bytes": ("log.local.retention.bytes",),
    "message.timestamp.type": ("log.message.timestamp.type",),
    "message.timestamp.before.max.ms": ("log.message.timestamp.before.max.ms",),
    "message.timestamp.after.max.ms": ("log.message.timestamp.after.max.ms",),
}
#: This topic key has the same value on all nodes: the topic's value, or else the cluster's.
#: Controllers elect by it and leaders commit by it (KIP-966), so no node may have its own value.
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
DEFAULT_MIN_INSYNC_REPLICAS: Final = 2


_COMPACTION_LAGS: Final = frozenset({"min.compaction.lag.ms", "max.compaction.lag.ms"})

CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
_CODECS: Final = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def _gzip_level(level: int) -> int:
    if level == -1 or 1 <= level <= 9:
        return level
    raise ValueError(f"{level} is no level of gzip: 1 to 9, or -1 for the library's own choice")


GzipLevel = Annotated[int, AfterValidator(_gzip_level)]
Lz4Level = Annotated[int, Field(ge=1, le=17)]
ZstdLevel = Annotated[int, Field(ge=-131072, le=22)]


class TopicConfig(KeyedModel):
    """Configuration of one topic, by Kafka's topic-level names."""

    retention_ms: Long = Field(default=168 * HOUR_MS, ge=-1)
    """How long records are kept with ``cleanup.policy=delete``; -1: unlimited."""
    retention_bytes: Long = -1
    """Newest bytes that a partition keeps with ``cleanup.policy=delete``; less than 0: unlimited.
    """
    segment_bytes: int = Field(default=1024 * MIB, ge=KIB)
    """A segment file is closed at this size."""
    segment_ms: Long = Field(default=168 * HOUR_MS, ge=1)
    """A segment file is closed after this time, so that retention and compaction can process it."""
    segment_jitter_ms: Long = Field(default=0, ge=0)
    """Each segment is closed up to this much earlier than ``segment.ms``, by a random amount, so
    that not all segments are closed at once."""
    segment_index_bytes: int = Field(default=10 * MIB, ge=4)
    """A segment file is closed when its index of offsets has this size."""
    preallocate: bool = False
    """Accepted without effect: file systems place appended bytes in large extents anyway."""
    min_insync_replicas: int = Field(default=DEFAULT_MIN_INSYNC_REPLICAS, ge=1)
    """In-sync replicas that a write with ``acks=all`` needs; all replicas if a topic has fewer."""
    unclean_leader_election_enable: bool = False
    """A replica that lost data may lead when no other can; then records can be lost."""
    cleanup_policy: CleanupPolicy = CleanupPolicy()
    """Delete old records, keep only the latest record of each key, or both; empty: keep all
    records."""
    min_cleanable_dirty_ratio: float = Field(default=0.5, ge=0, le=1)
    """A log is compacted when this share of its bytes was not compacted before."""
    delete_retention_ms: Long = Field(default=24 * HOUR_MS, ge=0)
    """How long compaction keeps the mark that a key was deleted."""
    min_compaction_lag_ms: Long = Field(default=0, ge=0)
    """Records that are younger than this are not compacted."""
    max_compaction_lag_ms: Long = Field(default=MAX_LONG, ge=1)
    """Records that are older than this are compacted, even below ``min.cleanable.dirty.ratio``."""
    compression_type: CompressionType = "producer"
    """Codec with which the leader compresses each batch; ``producer``: batches are kept as their
    producers compressed them."""
    compression_gzip_level: GzipLevel = -1
    """Level with which the leader compresses by gzip: 1 to 9, or -1 for the library's default."""
    compression_lz4_level: Lz4Level = 9
    """Level with which the leader compresses by lz4."""
    compression_zstd_level: ZstdLevel = 3
    """Level with which the leader compresses by zstd."""
    flush_messages: Long = Field(default=MAX_LONG, ge=1)
    """A log is flushed after this many records."""
    flush_ms: Long = Field(default=MAX_LONG, ge=0)
    """A log is flushed after this time."""
    index_interval_bytes: int = Field(default=4096, ge=0)
    """The offset index has an entry per this many bytes."""
    max_message_bytes: int = Field(default=MIB + 12, ge=0)
    """Largest batch, as the producer sends it."""
    file_delete_delay_ms: Long = Field(default=60_000, ge=0)
    """How long the files of a removed segment stay for requests that still read them."""
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    """Timestamps of records: those of the producer, or the time of the append."""
    message_timestamp_before_max_ms: Long = Field(default=MAX_LONG, ge=0)
    """A record may be this much older than the broker's clock."""
    message_timestamp_after_max_ms: Long = Field(default=HOUR_MS, ge=0)
    """A record may be this much newer than the broker's clock."""
    remote_storage_enable: bool = False
    """Only ``false`` is accepted, because there is no tiered storage."""
    local_retention_ms: Long = Field(default=-2, ge=-2)
    """A key of tiered storage; -2 stands for ``retention.ms``. Accepted without effect."""
    local_retention_bytes: Long = Field(default=-2, ge=-2)
    """A key of tiered storage; -2 stands for ``retention.bytes``. Accepted without effect."""
    remote_log_copy_disable: bool = False
    """A key of tiered storage. Accepted without effect."""
    remote_log_delete_on_disable: bool = False
    """A key of tiered storage. Accepted without effect."""
    leader_replication_throttled_replicas: ThrottledReplicas = ThrottledReplicas()
    """Which leaders send at most ``leader.replication.throttled.rate``: ``partition:broker``,
    or ``*``."""
    follower_replication_throttled_replicas: ThrottledReplicas = ThrottledReplicas()
    """Which followers fetch at most ``follower.replication.throttled.rate``:
    ``partition:broker``, or ``*``."""

    @field_validator(
        "leader_replication_throttled_replicas",
        "follower_replication_throttled_replicas",
        mode="before",
    )
    @classmethod
    def _throttled(cls, value: object) -> object:
        return ThrottledReplicas.parse(value) if isinstance(value, str) else value

    @field_validator("remote_storage_enable")
    @classmethod
    def _not_tiered(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "Tiered Storage functionality is disabled in the broker. Topic cannot be "
                "configured with remote log storage."
            )
        return value

    @property
    def compression(self) -> tuple[int, int | None] | None:
        """Codec number in batches, and level with which the leader compresses (None if the codec
        has no levels).

        The property is None if batches keep the producer's codec.
        """
        name = self.compression_type
        if name == "producer":
            return None
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return _CODECS[name], levels.get(name)

    @property
    def max_segment_ms(self) -> int:
        """Age in ms at which the active segment is closed: ``segment.ms``, and with compaction at
        most ``max.compaction.lag.ms``.
        """
        if self.cleanup_policy.is_compact:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @field_validator("cleanup_policy", mode="before")
    @classmethod
    def _policy(cls, value: object) -> object:
        return CleanupPolicy.parse(value) if isinstance(value, str) else value

    def with_overrides(self, overrides: Mapping[str, str], *, source: str) -> TopicConfig:
        """Return this configuration with the overrides of a topic.

        :param source: origin of the overrides, for error messages.
        :raises ConfigError: naming ``source``: keys are unknown; or else have wrong values; or else
            the overrides make ``min.compaction.lag.ms`` exceed ``max.compaction.lag.ms``.
        """
        unknown = unknown_keys(TopicConfig, overrides)
        if unknown:
            known = TopicConfig.keys()
            hinted = (f"{key}{nearest_hint(key, known)}" for key in unknown)
            raise ConfigError(f"{source}: unknown topic configuration {', '.join(hinted)}")
        config = parse_model(TopicConfig, {**self.by_key(), **overrides}, source)
        least_ms, most_ms = config.min_compaction_lag_ms, config.max_compaction_lag_ms
        if least_ms > most_ms and not _COMPACTION_LAGS.isdisjoint(overrides):
            raise ConfigError(
                f"{source}: min.compaction.lag.ms ({least_ms}) must not exceed "
                f"max.compaction.lag.ms ({most_ms})"
            )
        return config

    def with_stored_overrides(
        self, overrides: Mapping[str, str], *, source: str
    ) -> tuple[TopicConfig, str | None]:
        """Return this configuration with overrides from the metadata log, and a description of
        their problems.

        Another version may have written the overrides. If some are unknown or cannot be parsed,
        they are ignored, and the second value describes the problem. Otherwise it is None. If
        ``min.compaction.lag.ms`` exceeds ``max.compaction.lag.ms``, the latter is raised, because
        an early compaction deletes records.
        """
        values = stored_values(overrides, TopicConfig)
        try:
            return self.with_overrides(values, source=source), None
        except ConfigError as e:
            usable = {key: text for key, text in values.items() if self._can_parse(key, text)}
            config = parse_model(TopicConfig, {**self.by_key(), **usable}, source)
            if not _COMPACTION_LAGS.isdisjoint(usable):
                most_ms = max(config.min_compaction_lag_ms, config.max_compaction_lag_ms)
                config = config.model_copy(update={"max_compaction_lag_ms": most_ms})
            return config, str(e)

    def _can_parse(self, key: str, text: str) -> bool:
        """Return whether the key is known and its text valid. Relations to other values are not
        checked."""
        if unknown_keys(TopicConfig, {key: text}):
            return False
        try:
            parse_model(TopicConfig, {**self.by_key(), key: text}, "")
        except ConfigError:
            return False
        return True


class TopicDefaults(KeyedModel):
    """Broker keys that set defaults of topic keys (:data:`BROKER_KEYS`).

    All can change at run time.
    """

    message_max_bytes: int = Field(default=MIB + 12, ge=0)
    log_segment_bytes: int = Field(default=1024 * MIB, ge=KIB)
    log_roll_ms: Long | None = Field(default=None, ge=1)
    log_retention_ms: Long | None = None
    """Default of the topic key ``retention.ms``; less than 0: unlimited."""
    log_retention_bytes: Long = -1
    log_cleanup_policy: CleanupPolicy = CleanupPolicy()
    log_cleaner_min_cleanable_ratio: float = Field(default=0.5, ge=0, le=1)
    log_cleaner_delete_retention_ms: Long = Field(default=24 * HOUR_MS, ge=0)
    log_cleaner_min_compaction_lag_ms: Long = Field(default=0, ge=0)
    log_cleaner_max_compaction_lag_ms: Long = Field(default=MAX_LONG, ge=1)
    log_index_interval_bytes: int = Field(default=4096, ge=0)
    log_segment_delete_delay_ms: Long = Field(default=60_000, ge=0)
    log_flush_interval_messages: Long = Field(default=MAX_LONG, ge=1)
    log_flush_interval_ms: Long | None = Field(default=None, ge=0)
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    log_message_timestamp_before_max_ms: Long = Field(default=MAX_LONG, ge=0)
    log_message_timestamp_after_max_ms: Long = Field(default=HOUR_MS, ge=0)
    compression_type: CompressionType = "producer"
    compression_gzip_level: GzipLevel = -1
    compression_lz4_level: Lz4Level = 9
    compression_zstd_level: ZstdLevel = 3
    log_roll_jitter_ms: Long | None = Field(default=None, ge=0)
    log_index_size_max_bytes: int = Field(default=10 * MIB, ge=4)
    log_preallocate: bool = False
    log_local_retention_ms: Long = Field(default=-2, ge=-2)
    log_local_retention_bytes: Long = Field(default=-2, ge=-2)

    @field_validator("log_cleanup_policy", mode="before")
    @classmethod
    def _policy(cls, value: object) -> object:
        return CleanupPolicy.parse(value) if isinstance(value, str) else value

    @field_validator("log_retention_ms")
    @classmethod
    def _keeps_something(cls, value: int | None) -> int | None:
        return require_retention(value)


def require_retention(value: int | None) -> int | None:
    """Return ``value`` unless it is 0.

    :raises ValueError: it is 0, which Kafka rejects as the default of all topics.
    """
    if value == 0:
        raise ValueError("0 would keep no record: write at least 1, or -1 for ever")
    return value
