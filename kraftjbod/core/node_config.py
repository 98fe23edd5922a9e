"""PURE. Configuration that brokers and controllers share: listeners, disks and limits.

``config.py`` adds the keys that only brokers or only controllers have.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from itertools import permutations
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from kraftjbod.core.acl import STANDARD_AUTHORIZER
from kraftjbod.core.allowed_hosts import AllowedHosts, address_of
from kraftjbod.core.config_model import (
    KIB,
    MAX_INT,
    MIB,
    KeyedModel,
    Long,
    SplitText,
    list_items,
    parse_model,
    split_list,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.kafka_keys import canonical_keys, require_servable
from kraftjbod.core.listener_config import (
    ANY_HOST,
    LISTENER_PREFIX,
    ListenerConfig,
    listener_values,
    require_addresses,
    require_protocol_map,
    served_listener_keys,
    upper_names,
)
from kraftjbod.core.node_principals import NO_NODES, NODE_PRINCIPALS_KEY, NodePrincipals
from kraftjbod.core.sasl_config import PLAIN, NodeLogin, SaslConfig, node_login, require_sasl
from kraftjbod.core.security_keys import (
    PLAINTEXT,
    PROTOCOL_MAP,
    SASL_PLAINTEXT,
    SASL_PROTOCOLS,
    SSL,
    protocol_of,
    require_plain,
)
from kraftjbod.core.ssl_config import CLIENT_AUTH, PRINCIPAL_RULES, SslConfig

ALL_LOG_DIRS: Final = "*"
#: Listener name of a bootstrap server, whose ``host:port`` has no name.
_ANY_NAME: Final = "CONTROLLER"


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
        return cls(name.upper(), _ipv4_if_mapped(host.strip("[]")) or ANY_HOST, int(port))

    @property
    def text(self) -> str:
        """The text form that :meth:`parse` accepts: ``NAME://host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


class Voter(NamedTuple):
    """One controller of a static quorum: ``id@host:port``."""

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
    """Keys of a node's identity and disks. The storage tool reads only these."""

    process_roles: tuple[Literal["broker", "controller"], ...]
    """Role of this node: ``broker`` or ``controller``."""
    node_id: BrokerId = Field(ge=0)
    """Id of this node, unique among all controllers and brokers."""
    log_dirs: tuple[str, ...] = ()
    """One directory per disk; each is its own failure domain. None may lie in another one, by its
    name: symbolic links are not followed."""
    log_dir: tuple[str, ...] = ("/tmp/kraftjbod-logs",)  # noqa: S108 - Kafka's kind of default
    """The only log directory if ``log.dirs`` is not set."""
    metadata_log_dir: str | None = None
    """Directory of a controller's metadata log and of a node's own files. The daemon stops if the
    directory is lost, so use no data disk. If not set: the first log directory."""
    controller_quorum_voters: tuple[Voter, ...] = ()
    """All controllers as ``id@host:port``, the same in each file; an odd number, such as one or
    three. Only if the voters are not kept in the metadata log, see ``kraft.version``."""
    controller_quorum_bootstrap_servers: tuple[Endpoint, ...] = ()
    """Some controllers as ``host:port``, which a node asks for the voters; instead of
    ``controller.quorum.voters``."""

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

    @field_validator("controller_quorum_bootstrap_servers", mode="before")
    @classmethod
    def _bootstrap(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            return tuple(
                Endpoint.parse(f"{_ANY_NAME}://{part}") if isinstance(part, str) else part
                for part in parts
            )
        return parts

    @property
    def controller_addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each configured controller: bootstrap servers, or else voters."""
        named = self.controller_quorum_bootstrap_servers or self.controller_quorum_voters
        return tuple((one.host, one.port) for one in named)

    @model_validator(mode="after")
    def _one_role(self) -> Self:
        if len(self.process_roles) != 1:
            raise ValueError("process.roles must be either broker or controller, not both")
        if len(set(self.data_dirs)) != len(self.data_dirs):
            raise ValueError("log.dirs names a directory twice")
        for path, root in permutations(self.data_dirs, 2):
            if is_below(path, root):
                raise ValueError(
                    f"log.dirs names {path}, which is below {root}: each needs its disk"
                )
        return self

    @classmethod
    def from_properties(cls, values: Mapping[str, str], *, source: str, base_dir: str) -> Self:
        """Parse ``values`` of a ``.properties`` file, aliases included. Unknown keys are ignored.

        :param base_dir: absolute directory of relative paths.
        :raises ConfigError: naming ``source`` and every key that is missing or has a wrong value.
        """
        given: dict[str, Any] = dict(canonical_keys(values, source=source))
        for key in ("log.dirs", "log.dir", "cordoned.log.dirs", "log.dirs.allowed.roots"):
            if key in given:
                given[key] = _absolute_dirs(given[key], base_dir)
        paths = ("metadata.log.dir", "metrics.snapshot.path", "telemetry.path", "audit.log.path")
        for key in paths:
            if given.get(key):
                given[key] = _absolute(given[key], base_dir)
        settings = parse_model(cls, given, source)
        settings._base_dir = base_dir
        return settings

    def absolute_dirs(self, text: str) -> tuple[str, ...]:
        """Return the absolute, normalized paths of a comma-separated list of directories, without
        duplicates, as ``log.dirs`` is parsed.

        The item ``*`` stays as it is.
        """
        return tuple(dict.fromkeys(_absolute_dirs(text, self._base_dir)))

    @property
    def data_dirs(self) -> tuple[str, ...]:
        """Configured log directories: ``log.dirs``, or ``log.dir`` if that is not set."""
        return self.log_dirs or self.log_dir

    @property
    def metadata_dir(self) -> str:
        """``metadata.log.dir``. If it is not set, the first log directory."""
        return self.metadata_log_dir or self.data_dirs[0]


def is_below(path: str, root: str) -> bool:
    """Return whether ``path`` lies in ``root``, at any depth; False if they are equal. Only names
    are compared.
    """
    return path.startswith(root.rstrip("/") + "/")


def _absolute(path: str, base_dir: str) -> str:
    normal = posixpath.normpath(posixpath.join(base_dir, path))
    # POSIX gives two leading slashes a special meaning; no file system here does.
    return normal[1:] if normal.startswith("//") else normal


def _absolute_dirs(text: str, base_dir: str) -> tuple[str, ...]:
    return tuple(
        path if path == ALL_LOG_DIRS else _absolute(path, base_dir) for path in list_items(text)
    )


class DynamicNodeConfig(KeyedModel):
    """Keys that can change while a node runs, on brokers and controllers."""

    telemetry_level: Literal["debug", "info", "warning", "error"] = "info"
    """Events below this level are not written."""


DYNAMIC_NODE_KEYS: Final = DynamicNodeConfig.keys()
#: Brokers compare the principal of each request on the listener between them.
_node_principals: Final = lru_cache(maxsize=8)(NodePrincipals.parse)


class ConnectionLimitKeys(KeyedModel):
    """Limits of open connections. Only brokers change them while they run."""

    max_connections: int = Field(default=10_000, ge=1)
    """Connections of each listener that are open at once."""
    max_connections_per_ip: int = Field(default=MAX_INT, ge=0)
    """Connections from one address that are open at once."""
    max_connections_per_ip_overrides: SplitText = ()
    """``address:count``, for addresses with another limit."""

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
        """``max.connections.per.ip.overrides`` as a mapping from numeric address to limit."""
        return dict(map(_limit_of_host, self.max_connections_per_ip_overrides))


class NodeConfig(DynamicNodeConfig, ConnectionLimitKeys, StorageSettings, SslConfig, SaslConfig):
    """Configuration that brokers and controllers have in common."""

    cluster_id: str | None = None
    """Expected cluster id: a node whose ``meta.properties`` has another one does not start."""
    listeners: tuple[Endpoint, ...]
    """Addresses that accept connections: ``NAME://host:port``, with an empty host for all IPv4
    addresses and ``[::]`` for all IPv6 addresses. Names and ports are distinct."""
    advertised_listeners: tuple[Endpoint, ...] = ()
    """Addresses that clients and brokers connect to, with names of ``listeners``. A client receives
    the addresses of the listener to which it connected. If not set: ``listeners``, with the
    loopback address for all addresses."""
    controller_listener_names: tuple[str, ...] = ("CONTROLLER",)
    """Names of the controllers' listeners."""
    listener_security_protocol_map: SplitText = ()
    """``NAME:PROTOCOL`` for the names of listeners and those in ``controller.listener.names``. The
    protocols are PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL. Names without an entry are PLAINTEXT
    if no listener is secure."""
    security_inter_broker_protocol: str = PLAINTEXT
    """Protocol of the listener for requests between brokers, if ``inter.broker.listener.name`` is
    not set."""
    sasl_mechanism_inter_broker_protocol: str = ""
    """Mechanism by which brokers log in to each other, if that listener has SASL: PLAIN,
    SCRAM-SHA-256 or SCRAM-SHA-512. Set it on controllers too for SCRAM."""
    sasl_mechanism_controller_protocol: str = ""
    """Mechanism by which nodes log in to controllers, if that listener has SASL: PLAIN."""
    cluster_node_principals: str | None = None
    """Principals of brokers and controllers, with ``{id}`` in place of the node's id, such as
    ``User:CN=broker-{id}``; several are separated by ``;``. Then each request that names its sender
    is accepted from that node's principal only. If not set: by address, see
    [cluster-members.md](cluster-members.md)."""
    authorizer_class_name: str = ""
    """``org.apache.kafka.metadata.authorizer.StandardAuthorizer``: clients need rights, see
    [security.md](security.md). Empty: each client may do everything. Set it on all nodes."""
    super_users: str = ""
    """Principals that may do everything, such as ``User:CN=ops,O=x;User:alice``, separated by
    semicolons."""
    allow_everyone_if_no_acl_found: bool = False
    """Whether each client may use a resource that no access control list names."""
    cluster_action_allowed_hosts: tuple[str, ...] | None = None
    """Addresses, networks and names of hosts that may act as members of the cluster, or ``*`` for
    every host, see [cluster-members.md](cluster-members.md). If not set: this host, and those of
    registered brokers and of the controllers."""

    allow_insecure_cluster_listener: bool = False
    """Whether the node starts although other hosts can reach its listener for brokers and
    controllers, and either ``cluster.node.principals`` is not set, so that members are recognized
    by address only (see [cluster-members.md](cluster-members.md)), or nodes log in there without
    encryption (SASL_PLAINTEXT)."""

    config_providers: tuple[str, ...] = ()
    """Names of providers for references such as ``${file:/etc/kraftjbod/secrets:password}``, whose
    class and restrictions follow as ``config.providers.NAME.…``. The providers ``file``, ``dir``,
    ``env`` and ``cred`` need no declaration, see [security.md](security.md#references)."""

    telemetry_format: Literal["json", "console"] = "json"
    """Format of events: ``json``, an object per line, or ``console``, readable text."""
    telemetry_path: str | None = None
    """File that events are appended to. If not set: the journal under systemd, otherwise standard
    error."""
    metrics_snapshot_path: str | None = None
    """File with the daemon's metrics as JSON. If not set: no file is written."""
    metrics_snapshot_interval_ms: int = Field(default=1000, ge=100)
    """How often the metrics file is replaced."""
    shutdown_timeout_ms: int = Field(default=30_000, ge=1)
    """Deadline of an orderly stop."""

    log_dir_io_timeout_ms: int = Field(default=30_000, ge=1)
    """An operation that runs longer takes its directory offline."""
    log_dir_check_interval_ms: int = Field(default=500, ge=10)
    """How often the identity of each directory's disk is checked."""
    log_dir_io_suspect_ms: int = Field(default=2000, ge=1)
    """An operation that runs longer makes its directory STALLED until it ends. The limit of a
    flush, which takes longer for larger segments, is half of ``log.dir.io.timeout.ms``, if that is
    more."""
    log_dir_reserve_bytes: Long = Field(default=40 * MIB, ge=0)
    """Size of the reserve file that is released when the directory's disk is full (KIP-928); 0: no
    reserve."""
    log_dir_min_free_bytes: Long = Field(default=0, ge=0)
    """With fewer free bytes a directory becomes SATURATED before its disk is full; 0: only when the
    disk is full."""
    log_dir_heal_free_bytes: Long | None = Field(default=None, ge=0)
    """Bytes above both the reserve and the minimum that must be free before a SATURATED directory
    is ONLINE again. If not set: ``log.dir.reserve.bytes``."""
    log_dir_warn_free_percent: int = Field(default=10, ge=0, le=100)
    """The broker warns when a smaller share of the disk is free; 0: never."""
    log_dir_queue_max_ops: int = Field(default=10_000, ge=1)
    """Operations that may wait for one directory; beyond, new ones are refused."""
    log_dir_queue_max_bytes: Long = Field(default=256 * MIB, ge=1)
    """Bytes to be written that may wait for one directory; beyond, new appends are refused."""

    rpc_max_request_bytes: int = Field(default=8 * MIB, ge=KIB)
    """Largest request between brokers and controllers."""
    rpc_max_in_flight: int = Field(default=1000, ge=1)
    """Requests of one broker that a controller processes at once."""
    max_connections_reserved_for_brokers: int = Field(default=1000, ge=0)
    """Number of the ``max.connections`` that only brokers may use; at most half of them."""
    socket_listen_backlog_size: int = Field(default=512, ge=1)
    """Connections that the kernel keeps for each listener until they are accepted."""
    connections_max_idle_ms: Long = Field(default=600_000, ge=1)
    """A connection that is idle for this long is closed."""
    queued_max_request_bytes: Long = Field(default=256 * MIB, ge=MIB)
    """Limit of the bytes of unanswered requests of all connections, partly received ones
    included."""
    queued_max_response_bytes: Long = Field(default=256 * MIB, ge=MIB)
    """Limit of the bytes of responses that clients have not read yet, of all connections."""
    socket_receive_timeout_ms: int = Field(default=60_000, ge=1)
    """A connection is closed if a started request makes no progress for this long."""
    socket_send_timeout_ms: int = Field(default=300_000, ge=1)
    """A connection is closed if reading an answer makes no progress for this long."""
    socket_min_progress_bytes: int = Field(default=16 * KIB, ge=1)
    """Bytes that count as progress of a request or an answer."""
    socket_memory_grace_ms: int = Field(default=5000, ge=0)
    """When memory for requests or answers is short, the slowest connections are closed if they have
    occupied memory for this long."""

    #: Values of single listeners, by upper-case name and by key.
    _listener_values: Mapping[str, Mapping[str, str]] = PrivateAttr(default_factory=dict)

    @field_validator("config_providers", mode="before")
    @classmethod
    def _provider_names(cls, value: object) -> object:
        return split_list(value)

    @field_validator("listeners", "advertised_listeners", mode="before")
    @classmethod
    def _endpoints(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            return tuple(Endpoint.parse(part) if isinstance(part, str) else part for part in parts)
        return parts

    def require_closed_cluster_listeners(self) -> None:
        """Require that other hosts cannot reach this node's listeners between nodes, or that nodes
        prove who they are there (``cluster.node.principals``).

        Other hosts may not reach a SASL_PLAINTEXT listener between nodes in either case.

        ``allow.insecure.cluster.listener`` permits every listener.

        :raises ConfigError: naming the listener, and the ways out.
        """
        if self.allow_insecure_cluster_listener:
            return
        for endpoint in self.listeners:
            if endpoint.name not in self.node_listeners or is_loopback(endpoint.host):
                continue
            if self.protocol_of(endpoint.name) == SASL_PLAINTEXT:
                raise ConfigError(
                    f"other hosts can reach the listener {endpoint.text}, where nodes log in "
                    "without encryption, so the network shows their passwords or can take over "
                    f"their connections. Either use {endpoint.name}:SASL_SSL in {PROTOCOL_MAP}, or "
                    "bind the listener to 127.0.0.1 if all nodes run on this host, or set "
                    "allow.insecure.cluster.listener=true if only the cluster reaches the network"
                )
            if self.cluster_node_principals is None:
                raise ConfigError(
                    f"other hosts can reach the listener {endpoint.text}, by which brokers and "
                    "controllers reach each other, and nothing proves who they are. Either use "
                    f"TLS there and set {NODE_PRINCIPALS_KEY} (docs/security.md), or bind the "
                    "listener to 127.0.0.1 if all nodes run on this host, or set "
                    "allow.insecure.cluster.listener=true if only the cluster reaches the network"
                )

    @field_validator("cluster_node_principals")
    @classmethod
    def _principals(cls, value: str | None) -> str | None:
        if value is not None:
            _node_principals(value)
        return value

    @field_validator("authorizer_class_name")
    @classmethod
    def _known_authorizer(cls, value: str) -> str:
        if value.strip() not in ("", STANDARD_AUTHORIZER):
            raise ValueError(
                f"there is no authorizer {value}: write {STANDARD_AUTHORIZER}, or nothing for none"
            )
        return value.strip()

    @field_validator("super_users")
    @classmethod
    def _super_users(cls, value: str) -> str:
        for one in split_principals(value):
            kind, colon, name = one.partition(":")
            if not (kind and colon and name):
                raise ValueError(f"{one!r} is no principal: write Type:name, such as User:alice")
        return value

    @property
    def super_user_principals(self) -> frozenset[str]:
        """``super.users``, parsed."""
        return frozenset(split_principals(self.super_users))

    @field_validator("cluster_action_allowed_hosts", mode="before")
    @classmethod
    def _hosts(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            AllowedHosts.parse(parts)
        return parts

    @property
    def allowed_hosts(self) -> AllowedHosts | None:
        """``cluster.action.allowed.hosts``, parsed; None if it is not set.

        With ``cluster.node.principals`` every host is allowed by default, because certificates
        identify the nodes.
        """
        hosts = self.cluster_action_allowed_hosts
        if hosts is not None:
            return AllowedHosts.parse(hosts)
        return None if self.cluster_node_principals is None else AllowedHosts(is_every=True)

    @classmethod
    def from_properties(cls, values: Mapping[str, str], *, source: str, base_dir: str) -> Self:
        """Parse ``values`` as :meth:`StorageSettings.from_properties` does.

        Keys that require security, or that must not be ignored, are errors too.

        :raises ConfigError: naming ``source`` and the keys.
        """
        require_plain(values, known=cls.served_keys(values), source=source)
        require_servable(values, source=source)
        config = super().from_properties(values, source=source, base_dir=base_dir)
        names = config.known_listeners
        config._listener_values = listener_values(
            values, cls._listener_keys(), listeners=names, source=source
        )
        for name in sorted(names):
            own = config.of_listener(name, source=f"{source}: listener.name.{name.lower()}")
            is_served = any(endpoint.name == name for endpoint in config.listeners)
            if is_served and config.protocol_of(name) in SASL_PROTOCOLS:
                is_of_nodes = name in config.node_listeners
                nodes = NO_NODES if is_of_nodes else config.node_principals or NO_NODES
                require_sasl(own, f"{source}: listener {name}", node_principals=nodes)
        config.require_node_logins(source)
        config.require_node_identity(source)
        return config

    @classmethod
    def served_keys(cls, values: Mapping[str, str]) -> Collection[str]:
        """Return the keys that this node reads: all keys of the model, and the keys in ``values``
        that override a key of the model for one listener."""
        return {*cls.keys(), *served_listener_keys(values, cls._listener_keys())}

    @classmethod
    def _listener_keys(cls) -> frozenset[str]:
        """Return the keys that one listener can override."""
        return ListenerConfig.keys() & cls.keys()

    def of_listener(self, name: str, *, source: str = "listeners") -> ListenerConfig:
        """Return the values for the listener ``name``: its own ones, else those of all listeners.

        For a listener with SASL, the common ``ssl.client.auth`` and all principal mapping rules
        have no effect.

        :param name: upper-case name.
        :param source: origin of the values, for error messages.
        :raises ConfigError: naming ``source`` and each key with a wrong value.
        """
        common = self.by_key()
        values = {key: common[key] for key in sorted(self._listener_keys())}
        own = self._listener_values.get(name, {})
        if self.protocol_of(name) in SASL_PROTOCOLS:
            # As in Kafka: the common value is about listeners with SSL only, and the principal is
            # that of the login and not of a certificate.
            values[CLIENT_AUTH] = "none"
            own = {**own, PRINCIPAL_RULES: "DEFAULT"}
        return parse_model(ListenerConfig, {**values, **own}, source)

    def protocol_of(self, name: str) -> str:
        """Return the security protocol of the listener with the upper-case name ``name``."""
        return protocol_of(name, self.listener_security_protocol_map)

    @property
    def known_listeners(self) -> frozenset[str]:
        """Names of all listeners in the configuration: the ones that this node serves, and the ones
        of ``controller.listener.names``.
        """
        served = {endpoint.name for endpoint in self.listeners}
        return frozenset(served.union(self.controller_listener_names))

    @property
    def controller_listener(self) -> str:
        """Name of the listener by which brokers and controllers reach the controllers: the first
        of ``controller.listener.names``.
        """
        return self.controller_listener_names[0]

    @property
    def node_listeners(self) -> tuple[str, ...]:
        """Names of the listeners on which this node connects to other nodes, or accepts their
        connections.
        """
        return (self.controller_listener,)

    @property
    def node_mechanisms(self) -> Mapping[str, tuple[str, str]]:
        """SASL mechanism of this node's login on each listener between nodes, by listener name, as
        a pair of the key that sets it and its value.
        """
        key = "sasl.mechanism.controller.protocol"
        return {self.controller_listener: (key, self.sasl_mechanism_controller_protocol)}

    def login_of(self, name: str, *, source: str = "listeners") -> NodeLogin | None:
        """Return the login of this node on the listener ``name`` of other nodes; None without SASL.

        :param source: origin of the values, for error messages.
        :raises ConfigError: the mechanism is not served there, or user or password is missing.
        """
        if self.protocol_of(name) not in SASL_PROTOCOLS:
            return None
        key, mechanism = self.node_mechanisms[name]
        source = f"{source}: listener {name}"
        login = node_login(self.of_listener(name), mechanism, key=key, source=source)
        if name == self.controller_listener and mechanism != PLAIN:
            raise ConfigError(
                f"{source}: {key} is {mechanism}, and controllers serve PLAIN only: a controller "
                f"that lost its metadata has no credentials of SCRAM. Set {key}=PLAIN"
            )
        return login

    def require_node_logins(self, source: str) -> None:
        """Require that this node can log in on the listeners between nodes that have SASL.

        :raises ConfigError: naming the listener and the key.
        """
        names = {endpoint.name for endpoint in self.listeners}.union(self.controller_listener_names)
        if SASL_PROTOCOLS.isdisjoint(map(self.protocol_of, names)):
            return
        for name in self.node_listeners:
            self.login_of(name, source=source)
        served = [one.name for one in self.listeners if one.name in self.controller_listener_names]
        for name in served:
            enabled = self.of_listener(name).sasl_enabled_mechanisms
            if self.protocol_of(name) in SASL_PROTOCOLS and set(enabled) != {PLAIN}:
                raise ConfigError(
                    f"{source}: listener {name}: sasl.enabled.mechanisms is "
                    f"{','.join(enabled)}, and controllers serve PLAIN only: set "
                    f"{LISTENER_PREFIX}{name.lower()}.sasl.enabled.mechanisms=PLAIN"
                )

    @property
    def node_principals(self) -> NodePrincipals | None:
        """``cluster.node.principals``, parsed; None if it is not set."""
        text = self.cluster_node_principals
        return None if text is None else _node_principals(text)

    def node_principals_of(self, listener_name: str) -> NodePrincipals | None:
        """Return the principals that act as nodes on a listener; None if addresses decide.

        Principals of nodes count only on listeners between nodes, where they are those of
        certificates or logins (:meth:`require_node_identity`).
        """
        if self.cluster_node_principals is None:
            return None
        return self.node_principals if listener_name in self.node_listeners else NO_NODES

    def require_node_identity(self, source: str) -> None:
        """Require that ``cluster.node.principals`` can be verified, if it is set.

        :raises ConfigError: a listener between nodes requires neither certificates nor logins.
        """
        if self.cluster_node_principals is None:
            return
        for name in self.node_listeners:
            is_served = any(endpoint.name == name for endpoint in self.listeners)
            auth = self.of_listener(name).ssl_client_auth
            protocol = self.protocol_of(name)
            if protocol in SASL_PROTOCOLS:
                continue
            if protocol != SSL or (is_served and auth != "required"):
                raise ConfigError(
                    f"{source}: {NODE_PRINCIPALS_KEY} needs certificates on the listener {name}: "
                    f"add {name}:SSL to {PROTOCOL_MAP}, and set "
                    f"{LISTENER_PREFIX}{name.lower()}.ssl.client.auth=required where it is served; "
                    f"or logins: add {name}:SASL_SSL"
                )

    @field_validator("controller_listener_names", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return upper_names(split_list(value))

    @field_validator("listener_security_protocol_map", mode="before")
    @classmethod
    def _protocols(cls, value: object) -> object:
        parts = split_list(value)
        if isinstance(parts, tuple):
            require_protocol_map(parts)
        return parts

    @field_validator(
        "security_inter_broker_protocol",
        "sasl_mechanism_inter_broker_protocol",
        "sasl_mechanism_controller_protocol",
        mode="before",
    )
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.strip().upper() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_quorum(self) -> Self:
        if not self.listeners:
            raise ValueError("listeners names no address")
        if not self.controller_listener_names:
            raise ValueError("controller.listener.names names no listener: write CONTROLLER")
        require_addresses(self.listeners, self.advertised_listeners)
        if not (self.controller_quorum_voters or self.controller_quorum_bootstrap_servers):
            raise ValueError(
                "controller.quorum.voters names no controller: write id@host:port; or name some "
                "of them in controller.quorum.bootstrap.servers, as host:port"
            )
        ids = [voter.node_id for voter in self.controller_quorum_voters]
        if len(set(ids)) != len(ids):
            raise ValueError("controller.quorum.voters names a node twice")
        if self.log_dir_io_suspect_ms > self.log_dir_io_timeout_ms:
            raise ValueError("log.dir.io.suspect.ms must not exceed log.dir.io.timeout.ms")
        return self


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach a listener that is bound to ``host``."""
    address = address_of(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _ipv4_if_mapped(host: str) -> str:
    """Return ``127.0.0.1`` for ``::ffff:127.0.0.1``, as Java does, and other hosts as they are.

    A socket for IPv6 only cannot be bound to such an address.
    """
    address = address_of(host)
    return str(address) if address is not None and address.version == 4 else host


def split_principals(text: str) -> list[str]:
    """Return the principals of ``super.users``, which semicolons separate. Names may contain
    commas."""
    return [one.strip() for one in text.split(";") if one.strip()]


def _limit_of_host(text: str) -> tuple[str, int]:
    host, _, count = text.rpartition(":")
    try:
        return str(ip_address(host.strip().strip("[]"))), int(count)
    except ValueError as e:
        raise ValueError(f"{text!r} is no limit of an address such as 10.0.0.7:100") from e
