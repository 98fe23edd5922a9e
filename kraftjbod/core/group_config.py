"""PURE. What a broker's file says about consumer groups and what they commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from kraftjbod.core.config_model import (
    HOUR_MS,
    KIB,
    MIB,
    KeyedModel,
    parse_model,
    stored_values,
    unknown_keys,
)
from kraftjbod.core.errors import ConfigError


class GroupOverrides(KeyedModel):
    """What one group of the newer protocol may be configured to (KIP-1043); names are Kafka's."""

    consumer_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member that is not heard of for so long is out."""
    consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """How often members are told to send a heartbeat."""
    consumer_assignment_interval_ms: int = Field(default=1_000, ge=0)
    """How often the assignment is made anew at most; 0 for every time that it changes."""

    @classmethod
    def from_values(cls, values: Mapping[str, str], *, source: str) -> Self:
        """:raises ConfigError: naming ``source``, and each key that is unknown or wrong."""
        unknown = unknown_keys(cls, values)
        if unknown:
            raise ConfigError(
                f"{source}: Unknown group config name: {', '.join(unknown)}; "
                f"{', '.join(sorted(cls.keys()))} can be set"
            )
        return parse_model(cls, values, source)


#: By key of a group: the broker's key that says it for all groups that do not.
GROUP_KEYS: Final[Mapping[str, str]] = {
    key: f"group.{key}" for key in sorted(GroupOverrides.keys())
}
_SESSION: Final = "consumer.session.timeout.ms"
_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"


class GroupConfig(KeyedModel):
    """Part of :class:`BrokerConfig`; names and defaults are Kafka's."""

    group_min_session_timeout_ms: int = Field(default=6_000, ge=1)
    """A member of a consumer group may not ask for a shorter session."""
    group_max_session_timeout_ms: int = Field(default=1_800_000, ge=1)
    """Nor for a longer one."""
    group_initial_rebalance_delay_ms: int = Field(default=3_000, ge=0)
    """How long a group that was empty waits for more members, anew with each that comes."""
    group_max_size: int = Field(default=2**31 - 1, ge=1)
    """Members that a group may have."""
    group_consumer_session_timeout_ms: int = Field(default=45_000, ge=1)
    """A member of the newer protocol (KIP-848) that is not heard of for so long is out."""
    group_consumer_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """How often such a member is told to send a heartbeat."""
    group_consumer_assignment_interval_ms: int = Field(default=1_000, ge=0)
    """How often a group's assignment is made anew at most; 0 for every time that it changes."""
    group_consumer_min_session_timeout_ms: int = Field(default=45_000, ge=1)
    """This and the next five bound what groups may be configured to. Where what holds for all
    groups is itself beyond one of them, it is the bound."""
    group_consumer_max_session_timeout_ms: int = Field(default=60_000, ge=1)
    """The longest session of a group."""
    group_consumer_min_heartbeat_interval_ms: int = Field(default=5_000, ge=1)
    """The shortest interval of heartbeats of a group."""
    group_consumer_max_heartbeat_interval_ms: int = Field(default=15_000, ge=1)
    """The longest one."""
    group_consumer_min_assignment_interval_ms: int = Field(default=0, ge=0)
    """The shortest time between two assignments of a group."""
    group_consumer_max_assignment_interval_ms: int = Field(default=15_000, ge=0)
    """The longest one."""
    group_consumer_max_size: int = Field(default=2**31 - 1, ge=1)
    """Members that a group of the newer protocol may have."""
    group_consumer_assignors: tuple[Literal["uniform", "range"], ...] = ("uniform", "range")
    """Who may assign partitions; the first one does if members do not say."""
    group_consumer_migration_policy: Literal[
        "bidirectional", "upgrade", "downgrade", "disabled"
    ] = "bidirectional"
    """Which groups with members may change their protocol."""
    group_consumer_regex_refresh_interval_ms: int = Field(default=600_000, ge=10_000)
    """How often regular expressions are matched again when no topic came or went."""
    group_max_per_partition: int = Field(default=100_000, ge=1)
    """Groups of one partition of ``__consumer_offsets``; beyond it a new one is refused."""
    offset_metadata_max_bytes: int = Field(default=4096, ge=0)
    """What a client may add to an offset that it commits."""
    offsets_retention_minutes: int = Field(default=10_080, ge=1)
    """How long offsets are kept once their group is empty, or reads their topic no more."""
    offsets_retention_check_interval_ms: int = Field(default=600_000, ge=1)
    """How often offsets are looked for that were kept long enough."""
    offsets_commit_timeout_ms: int = Field(default=5_000, ge=1)
    """How long what a group writes may take until all in-sync replicas have it."""
    offsets_load_buffer_size: int = Field(default=5 * MIB, ge=KIB)
    """Bytes that are read at once when a broker takes over groups."""
    offsets_topic_num_partitions: int = Field(default=50, ge=1)
    """This and what follows are for the creation of ``__consumer_offsets``, when a group is first
    asked for. The topic can neither be grown nor deleted later."""
    offsets_topic_replication_factor: int = Field(default=3, ge=1)
    """Replicas; with fewer brokers alive it is not made, and groups wait."""
    offsets_topic_segment_bytes: int = Field(default=100 * MIB, ge=KIB)
    """Small segments make it load fast, because they are compacted soon."""

    group_telemetry_enable: bool = True
    """Send to ``__group_telemetry`` how far the groups that this broker coordinates are behind."""
    group_telemetry_interval_ms: int = Field(default=60_000, ge=100)
    """How often one record per group and partition is sent."""
    group_telemetry_max_samples: int = Field(default=10_000, ge=1)
    """Records of one round; groups that have no room in it come first in the next one."""
    group_telemetry_topic_partitions: int = Field(default=3, ge=1)
    """This and what follows are for the topic's creation; later it is configured as any other."""
    group_telemetry_topic_replication_factor: int = Field(default=3, ge=1)
    """Replicas, as soon as so many brokers are alive."""
    group_telemetry_topic_retention_ms: int = Field(default=168 * HOUR_MS, ge=1)
    """How long its records are kept."""
    group_telemetry_topic_retention_bytes: int = Field(default=128 * MIB, ge=MIB)
    """Per partition. There is no value for no limit: telemetry must not be what fills a disk."""

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
        """What a group is configured to that says nothing itself."""
        return GroupOverrides.model_validate(
            {key: getattr(self, of_all.replace(".", "_")) for key, of_all in GROUP_KEYS.items()}
        )

    def bounds_of(self, key: str) -> tuple[int, int]:
        """The least and the most that a group may say under ``key``."""
        of_all: int = getattr(self, GROUP_KEYS[key].replace(".", "_"))
        least, most = (getattr(self, name) for name in _bound_names(key))
        return min(least, of_all), max(most, of_all)

    def checked_overrides(self, values: Mapping[str, str], *, source: str) -> GroupOverrides:
        """What a group is configured to that says ``values``.

        :raises ConfigError: naming ``source``, and what is unknown or wrong.
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
        """The same of what was set once, and need not be within the bounds of today."""
        wanted = self.for_all_groups.by_key()
        values = stored_values(values, GroupOverrides)
        for key in values.keys() & wanted.keys():
            least, most = self.bounds_of(key)
            wanted[key] = min(max(int(values[key]), least), most)
        wanted[_HEARTBEAT] = max(1, min(wanted[_HEARTBEAT], wanted[_SESSION] - 1))
        return GroupOverrides.model_validate(wanted)


def _bound_names(key: str) -> tuple[str, str]:
    """``consumer.session.timeout.ms``: the fields of its least and its most."""
    kind, _, rest = key.replace(".", "_").partition("_")
    return f"group_{kind}_min_{rest}", f"group_{kind}_max_{rest}"
