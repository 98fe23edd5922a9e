"""PURE. Kafka's configuration keys that no model has: aliases, rejected and ignored keys.

* An alias is another name of a key of the models, and is replaced by that key.
* A key is rejected if ignoring it would change permissions or guarantees. A value that requests
  nothing, such as ``false``, is accepted.
* All other keys are ignored. docs/configuration.md and telemetry state the reason.

``security_keys.py`` rejects the keys for security. A test compares the keys of this file, of the
models and of ``security_keys.py`` with Kafka's list, so that no key is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from kraftjbod.core.config_model import KeyedModel, nearest_hint, unknown_keys
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.security_keys import names_security

V = TypeVar("V")

#: Alternative names in Kafka or a KIP for keys of the models.
ALIASES: Final[Mapping[str, str]] = {
    "broker.id": "node.id",
    "intra.broker.throttled.rate": "replica.alter.log.dirs.io.max.bytes.per.second",
    "num.replica.move.threads": "num.replica.alter.log.dirs.threads",
}


def canonical_key(key: str) -> str:
    """Return the models' name for ``key``, which may be an alias."""
    return ALIASES.get(key, key)


def canonical_keys(values: Mapping[str, V], *, source: str) -> dict[str, V]:
    """Return ``values`` with aliases replaced by the models' names.

    :raises ConfigError: a key and its alias have different values.
    """
    found: dict[str, V] = {}
    for key, value in values.items():
        canonical = canonical_key(key)
        if found.setdefault(canonical, value) != value:
            names = " and ".join(sorted(k for k in values if canonical_key(k) == canonical))
            raise ConfigError(f"{source}: {names} are one key and say different things; keep one")
    return found


class Refusal(NamedTuple):
    """Reason for which a key of Kafka is rejected instead of ignored.

    ``asks_for_nothing`` returns whether a value of the key is accepted nevertheless, because it has
    no effect, such as ``false``.
    """

    reason: str
    asks_for_nothing: Callable[[str], bool] = lambda _: False


def _is_false(value: str) -> bool:
    return value.lower() == "false"


def _is_no_limit(value: str) -> bool:
    return value == str(2**31 - 1)


def _has_both_protocols(value: str) -> bool:
    return {"classic", "consumer"}.issubset(part.strip() for part in value.split(","))


_NO_CLASSES: Final = "no class can be loaded here, so everything that it would refuse is allowed"
#: Rejected keys. A key with an empty value is accepted.
REFUSED: Final[Mapping[str, Refusal]] = {
    "alter.config.policy.class.name": Refusal(_NO_CLASSES),
    "create.topic.policy.class.name": Refusal(_NO_CLASSES),
    "client.quota.callback.class": Refusal(
        "quotas of clients are those of their user and client id"
    ),
    "controller.quorum.auto.join.enable": Refusal(
        "a controller joins the voters by kraftjbod-metadata-quorum add-controller", _is_false
    ),
    "group.coordinator.rebalance.protocols": Refusal(
        "the protocols classic and consumer are always served", _has_both_protocols
    ),
    "max.connection.creation.rate": Refusal(
        "the rate is limited per address only, by the quota connection_creation_rate", _is_no_limit
    ),
    "remote.log.storage.system.enable": Refusal("there is no tiered storage here", _is_false),
    "transaction.two.phase.commit.enable": Refusal(
        "transactions with two-phase commit (KIP-939) are not served", _is_false
    ),
}

_OF_CLASSES: Final = "no Java class is loaded here; figures are in `metrics.snapshot.path`"
_OF_SAMPLES: Final = "figures are counted since the start, without samples or windows"
_OF_QUOTAS: Final = (
    "quotas of clients have no windows: a client may use the amount of some seconds at once"
)
_OF_THROTTLES: Final = "throttled copying is paced by a token bucket, which has no windows"
_OF_PURGATORY: Final = "requests that wait are removed when they end, not in a purge"
_OF_THREADS: Final = "one event loop serves all requests, and each log directory has its threads"
_OF_BUFFERS: Final = "the kernel sizes the buffers of sockets"
_OF_GROUP_LOG: Final = "all records of one event loop iteration are written as one batch"
_OF_CLEANER: Final = "the cleaner reads in pieces of a fixed size"
_OF_QUORUM: Final = (
    "the active controller sends entries to the others; `controller.quorum.election.timeout.ms` "
    "and `controller.quorum.request.timeout.ms` are the timeouts"
)
_OF_METADATA_LOG: Final = (
    "snapshots and the retention of the metadata log depend on bytes and entries: "
    "`metadata.log.max.record.bytes.between.snapshots`, `metadata.log.retained.entries`"
)
#: Reason by key. A key that ends with a dot stands for all keys that begin with it.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "alter.log.dirs.replication.quota.window.num": _OF_THROTTLES,
    "alter.log.dirs.replication.quota.window.size.seconds": _OF_THROTTLES,
    "background.threads": _OF_THREADS,
    "controller.quorum.append.linger.ms": _OF_QUORUM,
    "controller.quorum.election.backoff.max.ms": _OF_QUORUM,
    "controller.quorum.fetch.max.bytes": _OF_QUORUM,
    "controller.quorum.fetch.snapshot.max.bytes": _OF_QUORUM,
    "controller.quorum.fetch.timeout.ms": _OF_QUORUM,
    "controller.quorum.retry.backoff.ms": _OF_QUORUM,
    "controller.quota.window.num": _OF_QUOTAS,
    "controller.quota.window.size.seconds": _OF_QUOTAS,
    "controller.socket.timeout.ms": "use `controller.request.timeout.ms`",
    "delete.records.purgatory.purge.interval.requests": _OF_PURGATORY,
    "early.start.listeners": "all listeners of a node open at the same time",
    "fetch.purgatory.purge.interval.requests": _OF_PURGATORY,
    "follower.fetch.last.tiered.offset.enable": "there is no tiered storage here",
    "group.coordinator.append.linger.ms": _OF_GROUP_LOG,
    "group.coordinator.background.threads": _OF_THREADS,
    "group.coordinator.cached.buffer.max.bytes": _OF_GROUP_LOG,
    "group.coordinator.threads": _OF_THREADS,
    "group.share.": "share groups (KIP-932) are not served",
    "group.streams.": "groups of the streams protocol (KIP-1071) are not served",
    "kafka.metrics.polling.interval.secs": _OF_CLASSES,
    "kafka.metrics.reporters": _OF_CLASSES,
    "log.cleaner.io.buffer.load.factor": _OF_CLEANER,
    "log.cleaner.io.buffer.size": _OF_CLEANER,
    "log.flush.start.offset.checkpoint.interval.ms": "a new log start is written at once",
    "metadata.log.max.snapshot.interval.ms": _OF_METADATA_LOG,
    "metadata.log.segment.ms": _OF_METADATA_LOG,
    "metadata.max.idle.interval.ms": "an idle quorum writes no entries; it has heartbeats",
    "metadata.max.retention.bytes": _OF_METADATA_LOG,
    "metadata.max.retention.ms": _OF_METADATA_LOG,
    "metric.reporters": _OF_CLASSES,
    "metrics.num.samples": _OF_SAMPLES,
    "metrics.recording.level": _OF_SAMPLES,
    "metrics.sample.window.ms": _OF_SAMPLES,
    "num.io.threads": _OF_THREADS,
    "num.network.threads": _OF_THREADS,
    "num.recovery.threads.per.data.dir": _OF_THREADS,
    "num.replica.fetchers": "there is one fetcher per leader and log directory",
    "offsets.topic.compression.codec": "offsets are written without compression, as by default",
    "producer.purgatory.purge.interval.requests": _OF_PURGATORY,
    "queued.max.requests": "requests are limited by `queued.max.request.bytes`, and per connection",
    "quota.window.num": _OF_QUOTAS,
    "quota.window.size.seconds": _OF_QUOTAS,
    "remote.fetch.max.wait.ms": "there is no tiered storage here",
    "remote.list.offsets.request.timeout.ms": "there is no tiered storage here",
    "remote.log.": "there is no tiered storage here",
    "replica.socket.receive.buffer.bytes": _OF_BUFFERS,
    "replication.quota.window.num": _OF_THROTTLES,
    "replication.quota.window.size.seconds": _OF_THROTTLES,
    "share.coordinator.": "share groups (KIP-932) are not served",
    "share.fetch.purgatory.purge.interval.requests": "share groups (KIP-932) are not served",
    "socket.connection.setup.timeout.max.ms": "connecting is part of the request's time-out",
    "socket.connection.setup.timeout.ms": "connecting is part of the request's time-out",
    "socket.receive.buffer.bytes": _OF_BUFFERS,
    "socket.send.buffer.bytes": _OF_BUFFERS,
    "telemetry.max.bytes": "metrics of clients (KIP-714) are not accepted",
    "transaction.partition.verification.enable": "a partition always asks the coordinator first",
}


def why_without_effect(key: str) -> str | None:
    """Return why Kafka's key ``key`` is ignored here; None for a key that is not Kafka's, is read,
    or is rejected.
    """
    if key in REFUSED:
        return None
    prefixes = (prefix for prefix in WITHOUT_EFFECT if prefix.endswith("."))
    near = next((prefix for prefix in prefixes if key.startswith(prefix)), key)
    return WITHOUT_EFFECT.get(near)


class IgnoredKey(NamedTuple):
    """A key in a configuration file that the node does not use."""

    key: str
    reason: str | None
    """Why a key of Kafka is ignored; None for a key that Kafka does not have either."""
    hint: str = ""
    """Suggests the key that may have been meant."""

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.key} has no effect here, because {self.reason}"
        return f"there is no key {self.key}, and it is ignored{self.hint}"


def ignored_keys(model: type[KeyedModel], values: Mapping[str, str]) -> list[IgnoredKey]:
    """Return the keys in ``values`` that a node with ``model`` ignores.

    Rejected keys are not included.
    """
    known = model.keys()
    unknown = (key for key in unknown_keys(model, values) if canonical_key(key) not in known)
    return [
        IgnoredKey(key, reason, "" if reason is not None else nearest_hint(key, known))
        for key in unknown
        if key not in REFUSED and not names_security(key)
        for reason in (why_without_effect(key),)
    ]


def require_servable(values: Mapping[str, str], *, source: str) -> None:
    """Raise an error if ``values`` has keys of :data:`REFUSED` whose values request something.

    :raises ConfigError: naming ``source`` and each such key.
    """
    problems = list(_refusals(values))
    if problems:
        raise ConfigError(f"{source}: {'; '.join(problems)}. Remove these keys.")


def _refusals(values: Mapping[str, str]) -> Iterator[str]:
    for key, refusal in REFUSED.items():
        value = values.get(key, "").strip()
        if value and not refusal.asks_for_nothing(value):
            yield f"{key} is {value}: {refusal.reason}"
