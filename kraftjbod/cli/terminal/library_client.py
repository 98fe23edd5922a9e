"""WIRE. Clients of librdkafka, for tools that join groups, use transactions or measure.

Settings have the names of the Java client, which users of Kafka's tools know. Settings that
librdkafka names differently are translated. Settings for Java only are ignored, and unknown ones
are refused. Tools import this file only when they need it, because the library takes a tenth of a
second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from kraftjbod.cli.terminal.command import (
    ClusterAddress,
    parse_pairs,
    read_file,
    replace_references,
)
from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError, ConnectionLostError, OperatingError
from kraftjbod.core.oauthbearer_config import OAUTHBEARER
from kraftjbod.core.properties import parse_properties

T = TypeVar("T")

_NAMES: Final = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
_ONLY_JAVA: Final = frozenset(
    {
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "max.block.ms",
        "max.poll.records",
        "metric.reporters",
    }
)
_JAAS: Final = "sasl.jaas.config"
#: Java's settings of OAUTHBEARER, which :func:`_security` translates to a callback.
_TOKENS: Final = frozenset(
    {
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.login.callback.handler.class",
    }
)
#: The library's own setting for tokens. With it, the other settings are the library's too.
_METHOD: Final = "sasl.oauthbearer.method"
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
#: Java's settings that :func:`_security` translates.
_STORES: Final = frozenset(
    {
        "ssl.protocol",
        "ssl.enabled.protocols",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        _IDENTIFICATION,
    }
)
#: Settings whose Java default -1 means the operating system's value.
_SYSTEMS_CHOICE: Final = frozenset({"socket.receive.buffer.bytes", "socket.send.buffer.bytes"})
_ASSIGNORS: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
#: Defaults of the Java producer.
_PRODUCER_DEFAULTS: Final = {"batch.size": "16384", "buffer.memory": "33554432"}


def read_settings(path: str | None, pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Return settings from a properties file and from ``KEY=VALUE`` options, which override the
    file.

    :param path: path of the file, or None.
    :param option: name of the option, for the error.
    :raises ConfigError: the file cannot be read, or a reference cannot be replaced.
    """
    of_file = {} if path is None else parse_properties(read_file(path), path)
    return replace_references({**of_file, **parse_pairs(pairs, option)}, path or option)


def library_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Translate ``settings`` from the Java client's names to librdkafka's.

    Settings that only the Java client has are dropped.

    :raises ConfigError: a security setting is invalid, or a key store cannot be read.
    """
    found: dict[str, Any] = {
        # The library's own messages repeat errors that are raised.
        "log_level": "2",
        "client.id": "kraftjbod-tools",
        **_security(settings),
    }
    for key, value in settings.items():
        if key in _STORES or key == _JAAS or (key in _TOKENS and _METHOD not in settings):
            continue
        name = _NAMES.get(key, key)
        if name in _ONLY_JAVA or (name in _SYSTEMS_CHOICE and value.strip() == "-1"):
            continue
        if key == "buffer.memory" and value.isdigit():
            value = str(max(1, int(value) // 1024))
        elif key == "partition.assignment.strategy":
            classes = (part.strip().rpartition(".")[2] for part in value.split(","))
            value = ",".join(_ASSIGNORS.get(each, each) for each in classes)
        found[name] = value
    return found


def _security(settings: Mapping[str, str]) -> dict[str, Any]:
    """Translate Java's key stores, logins and sources of tokens. librdkafka reads PEM only as text.

    librdkafka's own keys, such as ``ssl.ca.location``, are not changed.
    """
    if settings.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT":
        return {}
    from kraftjbod.cli.clients.client_settings import ClientSettings
    from kraftjbod.net.tls.stores import (
        certificates_pem,
        has_keystore,
        load_keystore,
        load_truststore,
    )

    parsed = parse_model(ClientSettings, settings, "the client's settings")
    found: dict[str, Any] = {}
    trusted = load_truststore(parsed)
    if trusted:
        found["ssl.ca.pem"] = certificates_pem(trusted).decode()
    if has_keystore(parsed):
        material = load_keystore(parsed)
        found["ssl.key.pem"] = material.key_pem().decode()
        found["ssl.certificate.pem"] = certificates_pem(material.chain).decode()
    if not parsed.ssl_endpoint_identification_algorithm:
        found[_IDENTIFICATION] = "none"
    if parsed.sasl_mechanism == OAUTHBEARER:
        if _METHOD not in settings:
            tokens = parsed.make_token_source("the client's settings")
            found["oauth_cb"] = lambda _: tokens.token()
    elif parsed.sasl_jaas_config is not None:
        login = parsed.make_password_login("the client's settings")
        if login is not None:
            found |= {"sasl.username": login.user, "sasl.password": login.password}
    return found


def make_producer(settings: Mapping[str, str]) -> Producer:
    """Return a producer with Java's defaults: idempotent unless ``acks`` is lower than all.

    :raises ConfigError: librdkafka does not accept a setting; the message names it.
    """
    is_idempotent = settings.get("acks", "all").strip() in ("all", "-1")
    defaults = {**_PRODUCER_DEFAULTS, "enable.idempotence": str(is_idempotent).lower()}
    # The queue is limited by bytes, as in Java.
    limits = {"queue.buffering.max.messages": "0"}
    return _make(Producer, {**library_settings({**defaults, **settings}), **limits})


def make_consumer(settings: Mapping[str, str], **handlers: Callable[..., Any]) -> Consumer:
    """Return a consumer.

    :param handlers: callbacks of the library, by setting.
    :raises ConfigError: librdkafka does not accept a setting; the message names it.
    """
    return _make(Consumer, {**library_settings(settings), **handlers})


def _make(build: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    try:
        return build(settings)
    except KafkaException as e:
        raise ConfigError(f"a client's setting is wrong: {e.args[0].str()}") from e


async def reach(settings: Mapping[str, str], cluster: ClusterAddress) -> None:
    """Wait until the cluster responds, because the library would try forever without a message.

    A listener with security is not checked, because only the library supports it.

    :raises ConnectionLostError: no broker responds in time.
    """
    if settings.get("security.protocol", "PLAINTEXT") == "PLAINTEXT":
        async with cluster.connect():
            return


def client_error(error: KafkaError) -> OperatingError:
    """Return an error of the library as this project's error."""
    if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE):
        return ConnectionLostError(error.str())
    return OperatingError(f"{error.name()}: {error.str()}")


@contextmanager
def refused_as_ours() -> Iterator[None]:
    """Context that converts ``KafkaException`` of librdkafka to :class:`OperatingError`."""
    try:
        yield
    except KafkaException as e:
        raise client_error(e.args[0]) from e
