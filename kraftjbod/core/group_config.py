"""PURE. Configuration keys of a broker for consumer groups and committed offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from kraftjbod.core.config_model import (
    HOUR_MS,
    KIB,
    MIB,
    KeyedModel,
    Long,
    Short,
    parse_model,
    stored_values,
    unknown_keys,
)
from kraftjbod.core.errors import ConfigError


class GroupOverrides(KeyedModel):
    """Settings of one consumer group of the protocol of KIP-848, by Kafka's names (KIP-1043)."""

    consumer_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member that sends no heartbeat for this long is removed from the group."""
    consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """Interval at which the coordinator asks members to send heartbeats."""
    consumer_assignment_interval_ms: int = Field(default=1_000, ge=0)
    """Shortest time between two assignments of the group; 0: assign at each change."""

    @classmethod
    def from_values(cls, values: Mapping[str, str], *, source: str) -> Self:
        """Parse the overrides of one group.

        :raises ConfigError: naming ``source`` and each key that is unknown or has a wrong value.
        """
        unknown = unknown_keys(cls, values)
        if unknown:
            raise ConfigError(
                f"{source}: Unknown group config name: {', '.join(unknown)}; "
                f"{', '.join(sorted(cls.keys()))} can be set"
            )
        return parse_model(cls, values, source)


#: Key of a group, and the broker key with its default for all groups.
GROUP_KEYS: Final[Mapping[str, str]] = {
    key: f"group.{key}" for key in sorted(GroupOverrides.keys())
}
_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"


class GroupConfig(KeyedModel):
    """Keys of a broker for groups and offsets, part of :class:`BrokerConfig`.

    The defaults are Kafka's.
    """

    group_min_session_timeout_ms: int = Field(default=6_000, ge=1)
    """A member of a consumer group may not ask for a shorter session."""
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1)
    """A member of a consumer group may not ask for a longer session."""
    group_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0)
    """How long an empty group waits for more members. If others join in this time, the group waits
    again, at most until the rebalance time-out of its members."""
    group_max_size: int = Field(default=2**31 - 1, ge=1)
    """Members that a group may have."""
    group_consumer_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member of the newer protocol (KIP-848) that sends no heartbeat for this long is removed
    from its group."""
    group_consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """Interval at which coordinators ask members of the newer protocol to send heartbeats."""
    group_consumer_assignment_interval_ms: int = Field(default=1_000, ge=0)
    """Shortest time between two assignments of a group; 0: assign at each change."""
    group_consumer_min_session_timeout_ms: int = Field(default=45_000, ge=1)
    """The shortest session of a group. This key and the next five limit the settings of single
    groups. If the default for all groups is outside of a limit, it replaces that limit."""
    group_consumer_max_session_timeout_ms: int = Field(default=60_000, ge=1)
    """The longest session of a group."""
    group_consumer_min_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """The shortest interval of heartbeats of a group."""
    group_consumer_max_heartbeat_interval_ms: int = Field(default=15_000, ge=1)
    """The longest interval of heartbeats of a group."""
    group_consumer_min_assignment_interval_ms: int = Field(default=0, ge=0)
    """The smallest value of ``consumer.assignment.interval.ms``."""
    group_consumer_max_assignment_interval_ms: int = Field(default=15_000, ge=0)
    """The largest value of ``consumer.assignment.interval.ms``."""
    group_consumer_max_size: int = Field(default=2**31 - 1, ge=1)
    """Members that a group of the newer protocol may have."""
    group_consumer_assignors: tuple[Literal["uniform", "range"], ...] = ("uniform", "range")
    """Assignors that members may choose; the first one is the default."""
    group_consumer_migration_policy: Literal[
        "bidirectional", "upgrade", "downgrade", "disabled"
    ] = "bidirectional"
    """Which groups with members may change their protocol."""
    group_consumer_regex_refresh_interval_ms: int = Field(default=600_000, ge=10_000)
    """How often regular expressions are matched again when no topic came or went."""
    group_max_per_partition: int = Field(default=100_000, ge=1)
    """Groups of one partition of ``__consumer_offsets``; beyond it a new one is refused."""
    offset_metadata_max_bytes: int = Field(default=4096, ge=0)
    """Largest metadata that a client may add to a committed offset."""
    offsets_retention_minutes: int = Field(default=10_080, ge=1)
    """How long offsets are kept once their group is empty or has no subscription to their topic."""
    offsets_retention_check_interval_ms: Long = Field(default=600_000, ge=1)
    """How often the coordinator searches for expired offsets."""
    offsets_commit_timeout_ms: int = Field(default=5_000, ge=1)
    """How long the replication of a group's records to all in-sync replicas may take."""
    offsets_load_buffer_size: int = Field(default=5 * MIB, ge=KIB)
    """Bytes that are read at once when a broker takes over groups."""
    offsets_topic_num_partitions: int = Field(default=50, ge=1)
    """Partitions of ``__consumer_offsets``. This key and the next two apply when the topic is
    created, at the first request for a group. Later the topic can neither get more partitions nor
    be deleted."""
    offsets_topic_replication_factor: Short = Field(default=3, ge=1)
    """Replicas of each partition; until this many brokers are alive, the topic is not created, and
    groups wait."""
    offsets_topic_segment_bytes: int = Field(default=100 * MIB, ge=KIB)
    """Segment size of the topic; small segments are compacted soon, so that the topic loads fast.
    """

    group_telemetry_enable: bool = True
    """Send to ``__group_telemetry`` how far the groups that this broker coordinates are behind."""
    group_telemetry_interval_ms: int = Field(default=60_000, ge=100)
    """How often one record per group and partition is sent."""
    group_telemetry_max_samples: int = Field(default=10_000, ge=1)
    """Records of one round; the next round starts with the groups that did not fit."""
    group_telemetry_topic_partitions: int = Field(default=3, ge=1)
    """Partitions of the topic. This key and the next three apply when the topic is created; later
    the topic is configured like any other."""
    group_telemetry_topic_replication_factor: int = Field(default=3, ge=1)
    """Replicas of each partition. If fewer brokers stay alive for some rounds, the topic is created
    with fewer replicas."""
    group_telemetry_topic_retention_ms: Long = Field(default=168 * HOUR_MS, ge=1)
    """How long the topic's records are kept."""
    group_telemetry_topic_retention_bytes: Long = Field(default=128 * MIB, ge=MIB)
    """Size limit of each partition. It cannot be unlimited, so that telemetry never fills a disk.
    """

    @field_validator("group_consumer_migration_policy", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _related(self) -> Self:
        if self.group_max_session_timeout_ms < self.group_min_session_timeout_ms:
            raise ValueError(
                "group.max.session.timeout.ms is below group.min.session.timeout.ms; raise it"
            )
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            raise ValueError(
                "group.consumer.heartbeat.interval.ms must be below "
                "group.consumer.session.timeout.ms"
            )
        for key in GROUP_KEYS:
            least, most = _bound_names(key)
            if getattr(self, least) > getattr(self, most):
                raise ValueError(f"{least} is above {most}".replace("_", "."))
        assignors = self.group_consumer_assignors
        if not assignors or len(set(assignors)) < len(assignors):
            raise ValueError("group.consumer.assignors must name each assignor once, and one")
        return self

    @property
    def for_all_groups(self) -> GroupOverrides:
        """Settings of a group without overrides."""
        return GroupOverrides.model_validate(
            {key: getattr(self, of_all.replace(".", "_")) for key, of_all in GROUP_KEYS.items()}
        )

    def bounds_of(self, key: str) -> tuple[int, int]:
        """Return the smallest and the largest value that a group may set for ``key``.

        Both include the default for all groups, even if it is outside of the configured limits.
        """
        of_all: int = getattr(self, GROUP_KEYS[key].replace(".", "_"))
        least, most = (getattr(self, name) for name in _bound_names(key))
        return min(least, of_all), max(most, of_all)

    def checked_overrides(self, values: Mapping[str, str], *, source: str) -> GroupOverrides:
        """Return the settings of a group with the overrides ``values``.

        :raises ConfigError: naming ``source``: a key is unknown, a value is wrong or outside of
            :meth:`bounds_of`, or the session is not longer than the heartbeat interval.
        """
        said = GroupOverrides.from_values(values, source=source).by_key()
        for key in values:
            least, most = self.bounds_of(key)
            if not least <= said[key] <= most:
                raise ConfigError(f"{source}: {key} must be in {least} to {most}, not {said[key]}")
        wanted = self.for_all_groups.by_key() | {key: said[key] for key in values}
        if wanted[_SESSION] <= wanted[_HEARTBEAT]:
            raise ConfigError(
                f"{source}: {_SESSION} ({wanted[_SESSION]}) must be greater than {_HEARTBEAT} "
                f"({wanted[_HEARTBEAT]})"
            )
        return GroupOverrides.model_validate(wanted)

    def clamped_overrides(self, values: Mapping[str, str]) -> GroupOverrides:
        """Return the settings of a group with stored overrides, limited to the present bounds.

        Another version may have written them. Unknown keys, and text that is no number, are
        ignored. The heartbeat interval is lowered below the session if necessary.
        """
        wanted = self.for_all_groups.by_key()
        values = stored_values(values, GroupOverrides)
        for key in values.keys() & wanted.keys():
            least, most = self.bounds_of(key)
            try:
                wanted[key] = min(max(int(values[key]), least), most)
            except ValueError:
                continue
        wanted[_HEARTBEAT] = max(1, min(wanted[_HEARTBEAT], wanted[_SESSION] - 1))
        return GroupOverrides.model_validate(wanted)


def _bound_names(key: str) -> tuple[str, str]:
    """Return the field names of the smallest and largest value of a group key."""
    kind, _, rest = key.replace(".", "_").partition("_")
    return f"group_{kind}_min_{rest}", f"group_{kind}_max_{rest}"
