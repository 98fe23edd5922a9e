"""PURE. Keys of single listeners that can change while a broker runs (KIP-226).

* They are those that Kafka can change for an existing listener, as far as brokers have them here:
  keystore, truststore and ``max.connections``, each with the prefix ``listener.name.<name>.``.
* The metadata keeps dynamic values in plain text, on all nodes. So the value of a secret key is a
  reference, which the broker resolves. Kafka stores passwords there in plain text.
* Other keys have no references: messages about them quote their values.

ADR 116 has the reasons and the alternatives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.config_references import is_one_reference, references_in
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import LISTENER_PREFIX, ListenerConfig, key_without_listener

_SECRET_KEYS: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
    }
)
#: Public text, although its type in Kafka is PASSWORD.
_CERTIFICATE_KEYS: Final = frozenset(
    {"ssl.keystore.certificate.chain", "ssl.truststore.certificates"}
)
#: The keys of keystore and truststore. Only single brokers can have dynamic values of them.
DYNAMIC_STORE_KEYS: Final = (
    _SECRET_KEYS
    | _CERTIFICATE_KEYS
    | {
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
DYNAMIC_LISTENER_KEYS: Final = DYNAMIC_STORE_KEYS | {"max.connections"}


def is_dynamic_listener_key(key: str) -> bool:
    """Return whether ``key`` belongs to one listener, and can change while a broker runs."""
    return key.startswith(LISTENER_PREFIX) and key_without_listener(key) in DYNAMIC_LISTENER_KEYS


def is_dynamic_store_key(key: str) -> bool:
    """Return whether ``key`` is about keystore or truststore of one listener."""
    return key.startswith(LISTENER_PREFIX) and key_without_listener(key) in DYNAMIC_STORE_KEYS


def require_dynamic_listeners(values: Mapping[str, str], *, source: str) -> None:
    """Require that ``values`` can be dynamic values. Key stores are not read.

    :param values: values by full key, for which :func:`is_dynamic_listener_key` is true.
    :raises ConfigError: naming ``source`` and a key with a wrong value. A secret is not quoted.
    """
    by_listener: dict[str, dict[str, str]] = {}
    for full, text in values.items():
        key = key_without_listener(full)
        _require_no_secret(full, key, text, source)
        if key not in _SECRET_KEYS:
            by_listener.setdefault(full.removesuffix(key), {})[key] = text
    for prefix, own in by_listener.items():
        parse_model(ListenerConfig, own, f"{source}: {prefix.rstrip('.')}")


def _require_no_secret(full: str, key: str, text: str, source: str) -> None:
    if key in _SECRET_KEYS:
        if not is_one_reference(text):
            raise ConfigError(
                f"{source}: {full}: the metadata would have this secret in plain text, on all "
                "nodes: write a reference to a file of the broker, such as "
                "${file:/etc/kraftjbod/secrets.properties:store}"
            )
    elif any(references_in(text)):
        raise ConfigError(f"{source}: {full}: only keys with secrets can have a reference")
    elif key in _CERTIFICATE_KEYS and "PRIVATE KEY" in text:
        raise ConfigError(f"{source}: {full} has a private key: leave only the certificates")


def require_listener_prefix(keys: Collection[str], *, source: str) -> None:
    """Require that keys of key stores have the prefix of a listener.

    :raises ConfigError: naming ``source`` and the keys.
    """
    bare = sorted(DYNAMIC_STORE_KEYS.intersection(keys))
    if bare:
        raise ConfigError(
            f"{source}: {', '.join(bare)} can change only for one listener while a broker runs: "
            f"write {LISTENER_PREFIX}NAME.{bare[0]}"
        )
