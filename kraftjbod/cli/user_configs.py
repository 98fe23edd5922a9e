"""WIRE. ``kraftjbod-configs --entity-type users``: SCRAM credentials, with Kafka's notation.

Quotas of users are out of scope; ``quota_configs.py`` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.scram_admin import NewCredential, alter_scram_user, describe_scram_users
from kraftjbod.cli.terminal.command import ClusterAddress
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.scram import (
    MAX_ITERATIONS,
    MECHANISM_NAMES,
    MIN_ITERATIONS,
    ScramMechanism,
)

_DEFAULT: Final = -1
_ITERATIONS: Final = "iterations"
_PASSWORD: Final = "password"  # noqa: S105 - the name of a key


def parse_credentials(adds: Mapping[str, str]) -> list[NewCredential]:
    """Parse values such as ``iterations=8192,password=secret``, by mechanism.

    :raises click.UsageError: an unknown mechanism or key, no password, or a wrong count. No
        password is quoted.
    """
    _require_mechanisms(adds)
    found = []
    for name, text in adds.items():
        iterations, password = MIN_ITERATIONS, None
        for part in text.split(","):
            key, equals, value = part.partition("=")
            if key.strip() == _PASSWORD and equals:
                password = value.strip()
            elif key.strip() == _ITERATIONS and _is_count(value.strip()):
                count = int(value)
                iterations = MIN_ITERATIONS if count == _DEFAULT else count
            else:
                raise click.UsageError(
                    f"Invalid credential property for {name}: write "
                    f"{name}=[iterations=8192,password=PASSWORD], with {MIN_ITERATIONS} to "
                    f"{MAX_ITERATIONS} iterations, and no comma in the password"
                )
        if not password:
            raise click.UsageError(
                f"Value of key '{name}' must include a non-empty password property: write "
                f"{name}=[password=PASSWORD]"
            )
        found.append(NewCredential(MECHANISM_NAMES[name], password, iterations))
    return found


def _is_count(text: str) -> bool:
    is_number = text.lstrip("-").isdecimal()
    return is_number and (int(text) == _DEFAULT or MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS)


def _require_mechanisms(names: Mapping[str, str] | Sequence[str]) -> None:
    unknown = sorted(set(names) - MECHANISM_NAMES.keys())
    if unknown:
        raise click.UsageError(
            "Only SCRAM credential configs can be changed for 'users'. Unexpected config names: "
            f"{', '.join(unknown)}"
        )


async def alter_user(
    cluster: ClusterAddress, user: str, adds: Mapping[str, str], deletes: Sequence[str]
) -> None:
    """Set and delete credentials.

    :param adds: values of ``--add-config`` by mechanism.
    :param deletes: names of mechanisms.
    :raises click.UsageError: the values are malformed.
    """
    new = parse_credentials(adds)
    _require_mechanisms(deletes)
    async with cluster.connect() as client:
        await alter_scram_user(client, user, new, [MECHANISM_NAMES[name] for name in deletes])


async def find_users(
    client: ClusterClient, user: str | None, *, as_json: bool
) -> Mapping[str, Mapping[ScramMechanism, int]]:
    """Return the iteration counts of credentials by user.

    For a user without credentials, print Kafka's message and return an empty mapping.

    :param user: None for all users.
    :param as_json: raise OperatingError (RESOURCE_NOT_FOUND) for a user without credentials
        instead.
    :raises OperatingError: the request failed.
    """
    try:
        return await describe_scram_users(client, None if user is None else [user])
    except OperatingError as e:
        if e.code is not ErrorCode.RESOURCE_NOT_FOUND or as_json:
            raise
        # Kafka's tool prints this line and succeeds.
        click.echo(
            f"Error retrieving SCRAM credential configs for user-principal '{user}': "
            f"ResourceNotFoundException: {e.message}"
        )
        return {}


def print_users(users: Mapping[str, Mapping[ScramMechanism, int]]) -> None:
    """Print the iteration counts of credentials."""
    for name, shown in sorted(users.items()):
        values = ", ".join(f"{one.mechanism_name}=iterations={n}" for one, n in shown.items())
        click.echo(f"SCRAM credential configs for user-principal '{name}' are {values}")
