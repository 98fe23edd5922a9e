"""PURE. Rejects configuration that requires security that is not implemented yet.

A daemon that only warned about ``sasl.enabled.mechanisms`` and then served everyone would violate
the operator's request. So a listener with a protocol that is not served, or an unknown key about
security, is a configuration error.

* A key with an empty value is accepted.
* A listener's protocol comes from ``listener.security.protocol.map``, else from its name, as in
  Kafka.
* Map entries for names without a listener are accepted: many files contain Kafka's defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from kraftjbod.core.config_model import list_items
from kraftjbod.core.errors import ConfigError

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
#: Kafka's security protocols.
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
TLS_PROTOCOLS: Final = frozenset({SSL, SASL_SSL})
SASL_PROTOCOLS: Final = frozenset({SASL_PLAINTEXT, SASL_SSL})
PROTOCOL_MAP: Final = "listener.security.protocol.map"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
#: Keys whose values are lists of ``NAME://host:port``.
_ADDRESS_KEYS: Final = ("listeners", "advertised.listeners")
#: Keys whose values are names of listeners.
_NAME_KEYS: Final = ("controller.listener.names", "inter.broker.listener.name")
_SECURE_WORDS: Final = ("SSL", "SASL", "TLS")

#: Prefixes of Kafka's security keys.
_PREFIXES: Final = (
    "ssl.",
    "sasl.",
    "security.",
    "authorizer.",
    "super.users",
    "listener.name.",
    "principal.",
    "password.",
    "delegation.token.",
    "allow.everyone.if.no.acl.found",
    "connections.max.reauth.ms",
    "connection.failed.authentication.",
)
#: Words between dots or underscores that mark a key as a security key.
_PARTS: Final = frozenset(
    {
        "ssl",
        "tls",
        "sasl",
        "jaas",
        "scram",
        "kerberos",
        "gssapi",
        "oauthbearer",
        "keystore",
        "truststore",
        "password",
        "acl",
        "acls",
        "authorizer",
        "principal",
    }
)
_WHAT_TO_DO: Final = (
    "Listeners have the protocols PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL. A listener with "
    "another protocol is refused, and not served without encryption. Remove these keys and "
    "protocols, and give each listener one of the four protocols."
)


def names_security(key: str) -> bool:
    """Return whether ``key`` is about authentication, authorization or encryption."""
    lower = key.lower()
    return lower.startswith(_PREFIXES) or not _PARTS.isdisjoint(lower.replace("_", ".").split("."))


def require_plain(
    values: Mapping[str, str],
    *,
    known: Collection[str],
    source: str,
    served: Collection[str] = PROTOCOLS,
) -> None:
    """Raise an error if ``values`` require security that is not served.

    :param known: keys of the models, which are validated there.
    :param served: protocols that listeners may have.
    :raises ConfigError: naming ``source`` and each such key.
    """
    problems = [*_secure_listeners(values, served)]
    problems += (
        f"{key} configures security that is not implemented"
        for key in sorted(values)
        if key not in known and values[key].strip() and names_security(key)
    )
    protocol = values.get(INTER_BROKER_PROTOCOL, PLAINTEXT).strip()
    if protocol.upper() not in served:
        problems.append(f"{INTER_BROKER_PROTOCOL} is {protocol}")
    if problems:
        raise ConfigError(f"{source}: {'; '.join(problems)}. {_WHAT_TO_DO}")


def _secure_listeners(values: Mapping[str, str], served: Collection[str]) -> Iterator[str]:
    protocols = dict(_mapped(values.get(PROTOCOL_MAP, "")))
    for key in _ADDRESS_KEYS:
        for listener in list_items(values.get(key, "")):
            name, is_listener, _ = listener.partition("://")
            protocol = _protocol_of(name, protocols)
            if is_listener and protocol not in served:
                yield f"{key} has {listener}, whose protocol is {protocol}"
    for key in _NAME_KEYS:
        for name in list_items(values.get(key, "")):
            protocol = _protocol_of(name, protocols)
            if protocol not in served:
                yield f"{key} names {name}, whose protocol is {protocol}"


def protocol_of(name: str, items: Iterable[str]) -> str:
    """Return the security protocol of the listener ``name``, in upper case.

    A name that is not in the map and contains SSL, SASL or TLS is its own protocol, which may be
    unknown. Any other such name is PLAINTEXT.

    :param items: the items of ``listener.security.protocol.map``.
    """
    return _protocol_of(name, dict(_mapped(",".join(items))))


def _mapped(text: str) -> Iterator[tuple[str, str]]:
    for item in list_items(text):
        name, _, protocol = item.rpartition(":")
        yield name.strip().upper(), protocol.strip().upper()


def _protocol_of(name: str, protocols: Mapping[str, str]) -> str:
    upper = name.strip().upper()
    if upper in protocols:
        return protocols[upper]
    return upper if any(word in upper for word in _SECURE_WORDS) else PLAINTEXT
