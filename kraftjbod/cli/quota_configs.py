"""WIRE. ``kraftjbod-configs --entity-type users|clients|ips``: quotas, with Kafka's lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

import click

from kraftjbod.cli.clients.quota_admin import ANY_NAME, alter_quotas, describe_quotas
from kraftjbod.cli.terminal.command import ClusterAddress, echo_json
from kraftjbod.cli.user_configs import alter_user, find_users, print_users
from kraftjbod.core.client_quota import CLIENT_ID, IP, USER, QuotaEntity
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.core.scram import MECHANISM_NAMES

ENTITY_TYPES: Final[Mapping[str, str]] = {"users": USER, "clients": CLIENT_ID, "ips": IP}
#: Words of Kafka's tool for each type, in its order.
_SHOWN_AS: Final = {USER: "user-principal", CLIENT_ID: "client-id", IP: "ip"}
#: A broker refuses the keys that it does not serve, and names those that it does.
_OF_CLIENTS: Final = frozenset(
    {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
)
_OF_ADDRESSES: Final = frozenset({"connection_creation_rate"})
#: The numbers that Java writes without an exponent.
_LEAST_PLAIN: Final = 1e-3
_LEAST_LARGE: Final = 1e7


class QuotaCommandError(KraftJbodError):
    """The command does not fit the quotas: a key to delete is not set, or a value is no number."""


def entity_names(kinds: Sequence[str], names: Sequence[str]) -> dict[str, str | None]:
    """Return the names by type of the entity that a command is about.

    :param kinds: values of ``--entity-type``.
    :param names: values of ``--entity-name`` in the same order; empty for the default. Types
        without one have ``ANY_NAME``.
    :raises click.UsageError: such types cannot be combined.
    """
    if len(set(kinds)) < len(kinds) or (len(kinds) > 1 and set(kinds) != {"users", "clients"}):
        raise click.UsageError("Only users and clients can be combined, each once")
    padded = [*(name or None for name in names), *[ANY_NAME] * (len(kinds) - len(names))]
    return {ENTITY_TYPES[kind]: name for kind, name in zip(kinds, padded, strict=True)}


async def alter_entity(
    cluster: ClusterAddress,
    kinds: Sequence[str],
    names: Mapping[str, str | None],
    adds: Mapping[str, str],
    deletes: Sequence[str],
) -> None:
    """Change quotas, or SCRAM credentials of a user, and print that it was done.

    :raises click.UsageError: names are missing, or keys do not belong to the types.
    :raises QuotaCommandError: a key to delete is not set, or a value is no number.
    """
    if ANY_NAME in names.values():
        raise click.UsageError(
            "--alter needs an --entity-name or --entity-default for each --entity-type"
        )
    if not adds and not deletes:
        raise click.UsageError("--alter needs --add-config or --delete-config")
    keys = {*adds, *deletes}
    credentials = keys & MECHANISM_NAMES.keys() if kinds == ["users"] else set()
    _require_keys(kinds, keys - credentials)
    if credentials and keys - credentials:
        raise click.UsageError(
            "Cannot alter both quota and SCRAM credential configs simultaneously for 'users' "
            "using --bootstrap-server."
        )
    if credentials:
        user = names[USER]
        if user is None:
            raise click.UsageError("SCRAM credentials belong to a user: give --entity-name")
        await alter_user(cluster, user, adds, deletes)
    else:
        await _alter_quotas(cluster, names, adds, deletes)
    name, kind = next(iter(names.values())), kinds[0]
    if name is None:
        click.echo(f"Completed updating default config for {kind} in the cluster.")
    else:
        click.echo(f"Completed updating config for {kind.removesuffix('s')} {name}.")


def _require_keys(kinds: Sequence[str], keys: set[str]) -> None:
    known = _OF_ADDRESSES if kinds == ["ips"] else _OF_CLIENTS
    if keys <= known:
        return
    what = {"ips": "connection quota", "users": "quota and SCRAM credential"}.get(kinds[0], "quota")
    raise click.UsageError(
        f"Only {what} configs can be added for '{kinds[0]}' using --bootstrap-server. Unexpected "
        f"config names: {', '.join(sorted(keys - known))}"
    )


async def _alter_quotas(
    cluster: ClusterAddress,
    names: Mapping[str, str | None],
    adds: Mapping[str, str],
    deletes: Sequence[str],
) -> None:
    changes: dict[str, float | None] = dict.fromkeys(deletes)
    for key, text in adds.items():
        try:
            changes[key] = float(text)
        except ValueError as e:
            raise QuotaCommandError(
                f"Cannot parse quota configuration value for {key}: {text}"
            ) from e
    async with cluster.connect() as client:
        if deletes:
            present = await describe_quotas(client, names)
            absent = set(deletes).difference(*present.values())
            if absent:
                raise QuotaCommandError(f"Invalid config(s): {','.join(sorted(absent))}")
        await alter_quotas(client, names, changes)


async def describe_entities(
    cluster: ClusterAddress, names: Mapping[str, str | None], *, as_json: bool
) -> None:
    """Print quotas and, if only users with a name are asked for, the credentials of users."""
    has_users = names.keys() == {USER} and names[USER] is not None
    async with cluster.connect() as client:
        quotas = await describe_quotas(client, names)
        if not as_json:
            for entity, values in quotas.items():
                click.echo(quota_line(entity, values))
        user = names.get(USER)
        users = None
        if has_users:
            users = await find_users(client, None if user == ANY_NAME else user, as_json=as_json)
    if not as_json:
        print_users(users or {})
        return
    document: dict[str, object] = {
        "version": 1,
        "quotas": [{"entity": dict(entity), "quotas": values} for entity, values in quotas.items()],
    }
    if users is not None:
        document["users"] = [
            {"name": name, "scram": {one.mechanism_name: count for one, count in shown.items()}}
            for name, shown in sorted(users.items())
        ]
    echo_json(document)


def quota_line(entity: QuotaEntity, values: Mapping[str, float]) -> str:
    """Return the line of Kafka's tool for an entity."""
    names = dict(entity)
    shown = [
        f"the default {word}" if names[kind] is None else f"{word} '{names[kind]}'"
        for kind, word in _SHOWN_AS.items()
        if kind in names
    ]
    quotas = ", ".join(f"{key}={java_double(value)}" for key, value in values.items())
    return f"Quota configs for {', '.join(shown)} are {quotas}"


def java_double(value: float) -> str:
    """Return a positive number as Java's ``Double.toString`` writes it, such as 1.048576E7."""
    if _LEAST_PLAIN <= value < _LEAST_LARGE:
        return format(Decimal(repr(value)), "f")
    digits = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits.digits))
    exponent = int(digits.exponent) + len(text) - 1
    return f"{text[0]}.{text[1:] or '0'}E{exponent}"
