"""WIRE. ``--add-scram`` of ``kraftjbod-storage format``: the first users of SCRAM, as Kafka writes
them.

``SCRAM-SHA-256=[name=alice,password=secret]``, or a salt and a salted password in base64:
``SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]``. No message quotes
a value.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kraftjbod.core.errors import StartupError
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.core.node_principals import (
    NO_NODES,
    NODE_MECHANISM_KEY,
    NODE_PRINCIPALS_KEY,
    NodePrincipals,
)
from kraftjbod.core.scram import (
    MAX_ITERATIONS,
    MECHANISM_NAMES,
    MIN_ITERATIONS,
    ScramCredential,
    ScramUser,
    salt_of,
)

_KEYS: Final = frozenset({"name", "password", "iterations", "salt", "saltedpassword"})
_SALT_BYTES: Final = 17


def initial_users(
    texts: Iterable[str],
    level: MetadataVersion,
    values: Mapping[str, str],
    random_bytes: Callable[[int], bytes],
) -> tuple[ScramUser, ...]:
    """Parse the values of ``--add-scram``.

    :param level: level of ``metadata.version`` with which the cluster begins.
    :param values: the node's configuration. A user may have a principal of its nodes only with the
        mechanism by which brokers log in to each other.
    :raises StartupError: a value is malformed, or a user is not allowed.
    """
    users = tuple(_user(text, random_bytes) for text in texts)
    if users and not level.has_access_control:
        raise StartupError(
            f"SCRAM is only supported in metadata.version {MetadataVersion.IV_4_4_IV2_J1.release} "
            f"or later, not in {level.release}: leave out --add-scram or --release-version"
        )
    names = values.get(NODE_PRINCIPALS_KEY, "").strip()
    nodes = NodePrincipals.parse(names) if names else NO_NODES
    node_mechanism = values.get(NODE_MECHANISM_KEY, "").strip().upper()
    for user in users:
        is_node = nodes.node_of(f"User:{user.name}") is not None
        if user.name == "*" or (is_node and user.mechanism.mechanism_name != node_mechanism):
            raise StartupError(
                f"--add-scram: no user can be called {user.name}, which stands for all users, or "
                f"is the principal of a node by {NODE_PRINCIPALS_KEY}"
            )
    if len({(user.name, user.mechanism) for user in users}) < len(users):
        raise StartupError("--add-scram: a user occurs twice with one mechanism")
    return users


def _user(text: str, random_bytes: Callable[[int], bytes]) -> ScramUser:
    mechanism_name, equals, rest = text.partition("=")
    mechanism = MECHANISM_NAMES.get(mechanism_name.strip())
    rest = rest.strip()
    if mechanism is None or not equals or not (rest.startswith("[") and rest.endswith("]")):
        raise StartupError(
            f"--add-scram: write {' or '.join(MECHANISM_NAMES)}, and =[name=NAME,password=PASSWORD]"
        )
    options: dict[str, str] = {}
    for part in rest[1:-1].split(","):
        key, _, value = part.partition("=")
        options[key.strip()] = value.strip().strip('"')
    if options.keys() - _KEYS:
        raise StartupError(
            f"--add-scram: the keys are {', '.join(sorted(_KEYS))}, and values have no comma"
        )
    iterations = options.get("iterations", str(MIN_ITERATIONS))
    if not iterations.isdecimal() or not MIN_ITERATIONS <= int(iterations) <= MAX_ITERATIONS:
        raise StartupError(f"--add-scram: iterations are {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    name, password, salted = (options.get(k, "") for k in ("name", "password", "saltedpassword"))
    if not name or bool(password) == bool(salted) or (salted and not options.get("salt")):
        raise StartupError(
            "--add-scram: a user has a name and either a password, or a salt and a saltedpassword"
        )
    salt = _decoded(options["salt"]) if "salt" in options else salt_of(random_bytes(_SALT_BYTES))
    if salted:
        salted_key = _decoded(salted)
    else:
        salted_key = mechanism.salted_password(password, salt, int(iterations))
    credential = ScramCredential.from_salted_password(
        mechanism, salted_key, salt=salt, iterations=int(iterations)
    )
    return ScramUser(name, mechanism, credential)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise StartupError("--add-scram: salt and saltedpassword are base64") from None
