"""WIRE. ``kraftjbod-configs``: shows and changes the configuration of topics, brokers and groups.

Flags, output lines and exit codes are those of Kafka's ``kafka-configs.sh``, and the tool works
with Kafka too. ``--bootstrap-controller`` sends requests to kraftjbod's controllers: about
themselves, or about a dead broker. Controllers know only the dynamic values of brokers. They accept
the removal of a cordon, but refuse a new one, which they cannot check.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    ResourceType,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from kraftjbod.cli.clients.controller_admin import describe_controllers
from kraftjbod.cli.clients.controller_client import ControllerClient
from kraftjbod.cli.clients.first_contact import controllers_at
from kraftjbod.cli.clients.group_admin import list_groups
from kraftjbod.cli.quota_configs import (
    ENTITY_TYPES,
    alter_entity,
    describe_entities,
    entity_names,
)
from kraftjbod.cli.terminal.command import (
    ClusterAddress,
    Tool,
    bootstrap_options,
    config_option,
    controller_dialer,
    echo_json,
    format_option,
    json_option,
    parse_list,
    read_file,
    report,
    timeout_option,
    tool,
)
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    KraftJbodError,
    OperatingError,
)
from kraftjbod.core.properties import parse_properties
from kraftjbod.net.dialer import Dialer
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    DescribeDynamicConfigsRequest,
    IncrementalAlterConfigsRequestRpc,
)
from kraftjbod.protocol.rpc_config_messages import ConfigChange as RpcConfigChange
from kraftjbod.protocol.rpc_controller_messages import (
    DescribeControllerConfigsRequest,
    DescribedConfig,
)

_OUTSIDE_BRACKETS: Final = r"(?![^\[]*\])"
_TYPES: Final[Mapping[str, ResourceType]] = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "groups": ResourceType.GROUP,
}
_DYNAMIC_SOURCES: Final = frozenset(
    {
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ConfigSource.DYNAMIC_GROUP_CONFIG,
    }
)

Described = dict[str, list[ConfigEntry]]
"""Entries by the name of their topic, broker or group."""


class ConfigCommandError(KraftJbodError):
    """A key to delete is not set, or the asked controllers do not have the requested values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The parsed command. ``name`` is None for all of a kind, and empty for the defaults of
    brokers."""

    kind: ResourceType
    name: str | None
    adds: Mapping[str, str]
    deletes: Sequence[str]
    shows_all: bool
    as_json: bool

    @property
    def own_source(self) -> ConfigSource:
        """The source of values that were set for exactly this topic, broker or group."""
        if self.kind is ResourceType.TOPIC:
            return ConfigSource.DYNAMIC_TOPIC_CONFIG
        if self.kind is ResourceType.GROUP:
            return ConfigSource.DYNAMIC_GROUP_CONFIG
        if self.name == "":
            return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return ConfigSource.DYNAMIC_BROKER_CONFIG


class ConfigsTool(Tool):
    """The tool, in whose arguments ``--entity-default`` is an ``--entity-name`` without text.

    Kafka's tool pairs types with names and defaults in the order of the arguments, which click does
    not keep between options.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        for word in args:
            words += ["--entity-name", ""] if word == "--entity-default" else [word]
        return super().parse_args(ctx, words)


@tool(ConfigsTool)
@bootstrap_options(
    "Addresses of controllers, for their own configuration or that of a dead broker."
)
@config_option
@timeout_option
@click.option(
    "--entity-type",
    "entity_types",
    type=click.Choice(sorted([*_TYPES, *ENTITY_TYPES])),
    multiple=True,
    help="The type. Users and clients can be combined, for quotas of both.",
)
@click.option(
    "--entity-name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Name of the topic, group, user, client or address, or id of the broker or controller.",
)
@click.option(
    "--entity-default",
    is_flag=True,
    expose_value=False,
    help="The defaults of all brokers and controllers, or of all users, clients or addresses.",
)
@click.option("--user", metavar="NAME", help="Short for --entity-type users --entity-name NAME.")
@click.option("--client", metavar="NAME", help="The same for clients.")
@click.option("--ip", metavar="ADDRESS", help="The same for ips.")
@click.option("--user-defaults", is_flag=True, help="The default of all users.")
@click.option("--client-defaults", is_flag=True, help="The default of all clients.")
@click.option("--ip-defaults", is_flag=True, help="The default of all addresses.")
@click.option("--describe", "action", flag_value="describe", help="Show configurations.")
@click.option("--alter", "action", flag_value="alter", help="Change a configuration.")
@click.option("--all", "shows_all", is_flag=True, help="Show static and default values, too.")
@click.option(
    "--add-config",
    metavar="K1=V1,K2=[V1,V2],...",
    help="Values to set; write a list in square brackets.",
)
@click.option(
    "--add-config-file",
    type=click.Path(dir_okay=False),
    help="Properties file with values to set, such as passwords of users.",
)
@click.option("--delete-config", metavar="K1,K2,...", help="Keys whose values to remove.")
@format_option("kafka", "json", help="The format of Kafka's tool, or one JSON document.")
@json_option
def main(
    bootstrap_server: str | None,
    bootstrap_controller: str | None,
    command_config: str | None,
    give_up_ms: int,
    entity_types: tuple[str, ...],
    names: tuple[str, ...],
    user: str | None,
    client: str | None,
    ip: str | None,
    user_defaults: bool,
    client_defaults: bool,
    ip_defaults: bool,
    action: str | None,
    shows_all: bool,
    add_config: str | None,
    add_config_file: str | None,
    delete_config: str | None,
    style: str,
    as_json: bool,
) -> None:
    """Show and change the configuration of topics, brokers and groups, quotas, and users."""
    short = (
        *_short("users", user, user_defaults),
        *_short("clients", client, client_defaults),
        *_short("ips", ip, ip_defaults),
    )
    kinds = [*entity_types, *(kind for kind, _ in short)]
    names = (*names, *(name for _, name in short))
    if not kinds:
        raise click.UsageError("--entity-type is missing")
    if len(names) > len(kinds):
        raise click.UsageError("give one --entity-name or --entity-default for each --entity-type")
    if add_config is not None and add_config_file is not None:
        raise click.UsageError("--add-config and --add-config-file exclude each other")
    adds = parse_added(add_config or "") if add_config_file is None else _of_file(add_config_file)
    is_json = as_json or style == "json"
    if ENTITY_TYPES.keys() & set(kinds):
        if bootstrap_server is None:
            raise click.UsageError(f"{kinds[0]} need --bootstrap-server")
        at = ClusterAddress(
            bootstrap_server=bootstrap_server, command_config=command_config, timeout_ms=give_up_ms
        )
        deletes = parse_list(delete_config)
        asyncio.run(_of_clients(at, action, kinds, names, adds, deletes, as_json=is_json))
        return
    if len(kinds) > 1:
        raise click.UsageError("Only users and clients can be combined")
    order = Order(
        kind=_TYPES[kinds[0]],
        name=names[0] if names else None,
        adds=adds,
        deletes=parse_list(delete_config),
        shows_all=shows_all,
        as_json=is_json,
    )
    _require_sense(action, order, is_controller=bootstrap_controller is not None)
    is_alter = action == "alter"
    if bootstrap_controller is not None:
        dialer = controller_dialer(command_config)
        asyncio.run(_at_controllers(bootstrap_controller, dialer, give_up_ms, is_alter, order))
        return
    assert bootstrap_server is not None
    cluster = ClusterAddress(
        bootstrap_server=bootstrap_server, command_config=command_config, timeout_ms=give_up_ms
    )
    asyncio.run(_at_brokers(cluster, is_alter, order))


def _short(kind: str, name: str | None, is_default: bool) -> list[tuple[str, str]]:
    """Return the type and name of Kafka's short flags of one type; empty without them."""
    if name is not None and is_default:
        raise click.UsageError(f"--{kind[:-1]} and --{kind[:-1]}-defaults exclude each other")
    return [(kind, name or "")] if name is not None or is_default else []


async def _of_clients(
    cluster: ClusterAddress,
    action: str | None,
    kinds: Sequence[str],
    names: Sequence[str],
    adds: Mapping[str, str],
    deletes: Sequence[str],
    *,
    as_json: bool,
) -> None:
    entity = entity_names(kinds, names)
    if action == "alter":
        await alter_entity(cluster, kinds, entity, adds, deletes)
    elif action == "describe" and not adds and not deletes:
        await describe_entities(cluster, entity, as_json=as_json)
    else:
        raise click.UsageError("give exactly one of --describe, --alter")


def _of_file(path: str) -> dict[str, str]:
    """Return the values of a file of ``--add-config-file``, without the brackets of lists."""
    values = parse_properties(read_file(path), path)
    return {key: value.strip().removeprefix("[").removesuffix("]") for key, value in values.items()}


def parse_added(text: str) -> dict[str, str]:
    """Parse ``a=1,b=[x,y]`` to values by key, without the brackets.

    :raises click.BadParameter: a part is not a pair.
    """
    pairs = {}
    for part in re.split(f",{_OUTSIDE_BRACKETS}", text):
        if not part.strip():
            continue
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(
                'Invalid entity config: all configs to be added must be in the format "key=val".',
                param_hint="--add-config",
            )
        pairs[key.strip()] = value.strip().removeprefix("[").removesuffix("]").strip()
    return pairs


def _require_sense(action: str | None, order: Order, *, is_controller: bool) -> None:
    is_broker = order.kind is ResourceType.BROKER
    if action is None:
        raise click.UsageError("give exactly one of --describe, --alter")
    if not is_broker and order.name == "":
        raise click.UsageError(f"{order.kind.name.lower()}s have no --entity-default")
    if is_broker and order.name and not order.name.isdecimal():
        raise click.UsageError(
            f"The entity name for brokers must be a valid integer broker id, found: {order.name}"
        )
    if action == "alter":
        if order.name is None:
            raise click.UsageError("--alter needs --entity-name or --entity-default")
        if not order.adds and not order.deletes:
            raise click.UsageError("--alter needs --add-config or --delete-config")
    elif order.adds or order.deletes:
        raise click.UsageError("--add-config and --delete-config belong to --alter")
    if is_controller and order.shows_all and not (is_broker and order.name):
        raise click.UsageError("--all needs --entity-name with the id of a controller, or a broker")


# --- at the brokers ------------------------------------------------------------------------------


async def _at_brokers(cluster: ClusterAddress, is_alter: bool, order: Order) -> None:
    async with cluster.connect() as client:
        await client.retry(client.refresh_metadata)
        if not is_alter:
            await _describe(client, order)
            return
        assert order.name is not None
        resource = ConfigResource(order.kind, order.name)
        if order.deletes and _brokers_can_answer(client, order):
            _require_present(order, (await _own_entries(client, order, [order.name]))[order.name])
        changes = [
            *(ConfigChange(key, None, ConfigOperation.DELETE) for key in order.deletes),
            *(ConfigChange(key, value) for key, value in order.adds.items()),
        ]
        await client.retry(lambda: incremental_alter_configs(client, {resource: changes}))
    _report_altered(order)


async def _describe(client: ClusterClient, order: Order) -> None:
    existing = await _existing(client, order.kind)
    if order.name is not None and order.name not in existing:
        kind = order.kind.name.lower()
        if order.as_json:
            echo_json({"version": 1, "entities": []})
        else:
            click.echo(f"The {kind} '{order.name}' doesn't exist and doesn't have dynamic config.")
        return
    names = existing if order.name is None else [order.name]
    _report(order, await _own_entries(client, order, names))


async def _existing(client: ClusterClient, kind: ResourceType) -> Sequence[str]:
    """Return all names of a kind. Groups that have only a configuration are included."""
    match kind:
        case ResourceType.TOPIC:
            return sorted(client.metadata.topics)
        case ResourceType.BROKER:
            return [*map(str, sorted(client.metadata.brokers)), ""]
        case ResourceType.GROUP:
            configured = await client.retry(lambda: list_config_resources(client, kind))
            there = await list_groups(client)
            return sorted({*configured, *(group.group_id for group in there)})
        case _:
            assert_never(kind)


def _brokers_can_answer(client: ClusterClient, order: Order) -> bool:
    """Return whether brokers can describe the entity; only the controller can describe a dead
    broker."""
    if order.kind is not ResourceType.BROKER or order.name == "":
        return True
    return int(order.name or 0) in client.metadata.brokers


async def _own_entries(client: ClusterClient, order: Order, names: Sequence[str]) -> Described:
    """Return the entries to be shown, by name: the dynamic ones, or with ``--all`` all values in
    use."""
    resources = [ConfigResource(order.kind, name) for name in names]
    found = await client.retry(lambda: describe_configs(client, resources))
    return {
        resource.name: sorted(
            (
                entry
                for entry in found[resource].values()
                if order.shows_all or _is_own(entry, resource)
            ),
            key=lambda entry: entry.name,
        )
        for resource in resources
    }


def _is_own(entry: ConfigEntry, resource: ConfigResource) -> bool:
    is_default = resource.type is ResourceType.BROKER and not resource.name
    if is_default or entry.source is not ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG:
        return entry.source in _DYNAMIC_SOURCES
    return False


def _require_present(order: Order, entries: Sequence[ConfigEntry]) -> None:
    """Check that the keys to delete are set.

    :raises ConfigCommandError: some are not; names them, with the text of Kafka's tool.
    """
    present = {entry.name for entry in entries if entry.source is order.own_source}
    absent = [key for key in order.deletes if key not in present]
    if absent:
        raise ConfigCommandError(f"Invalid config(s): {','.join(absent)}")


# --- at the controllers --------------------------------------------------------------------------


async def _at_controllers(
    addresses: str, dialer: Dialer, timeout_ms: int, is_alter: bool, order: Order
) -> None:
    async with (
        ControllerClient(addresses, timeout_ms=timeout_ms, dialer=dialer) as client,
        controllers_at(addresses, timeout_ms=timeout_ms, report=report),
    ):
        described = await _committed(client, order)
        if not is_alter:
            if order.kind is ResourceType.BROKER:
                described |= await _of_controllers(client, dialer, order, described, timeout_ms)
            _report(order, dict(sorted(described.items(), key=_by_id)))
            return
        assert order.name is not None
        _require_present(order, described[order.name])
        changes = [
            *(RpcConfigChange(name=key, operation=ConfigOperation.DELETE) for key in order.deletes),
            *(
                RpcConfigChange(name=key, operation=ConfigOperation.SET, value=value)
                for key, value in order.adds.items()
            ),
        ]
        resource = AlteredResource(
            resource_type=order.kind, name=order.name, changes=tuple(changes)
        )
        answer = await client.call(IncrementalAlterConfigsRequestRpc(resources=(resource,)))
        for outcome in answer.resources:
            if outcome.error_code is not ErrorCode.NONE:
                raise OperatingError(outcome.error_message or "", code=outcome.error_code)
    _report_altered(order)


def _by_id(described: tuple[str, object]) -> tuple[bool, int, str]:
    """Return a sort key: nodes by id, then the defaults of all nodes, as in Kafka's tool."""
    name = described[0]
    return name == "", int(name) if name.isdecimal() else 0, name


async def _committed(client: ControllerClient, order: Order) -> Described:
    """Return the dynamic values by name; an empty list for a requested name without values."""
    names = None if order.name is None else (order.name,)
    answer = await client.call(DescribeDynamicConfigsRequest(resource_type=order.kind, names=names))
    described = {
        resource.name: [
            _entry(key, value, order, resource.name)
            for key, value in sorted(resource.values.items())
        ]
        for resource in answer.resources
    }
    if order.name is not None:
        described.setdefault(order.name, [])
    return described


async def _of_controllers(
    client: ControllerClient,
    dialer: Dialer,
    order: Order,
    committed: Described,
    timeout_ms: int,
) -> Described:
    """Return the values that controllers report about themselves, by controller id.

    :raises ConfigCommandError: ``--all`` for a broker, or for a controller that does not respond.
    """
    cluster = await describe_controllers(client)
    controllers = {str(each.controller_id): each.listeners for each in cluster}
    wanted = [name for name in controllers if order.name in (None, name)]
    if order.shows_all and not wanted:
        raise ConfigCommandError(
            "controllers know the static values of controllers only; --all needs a broker, or a "
            f"controller: {', '.join(controllers) or 'none is known'}"
        )
    described: Described = {}
    for name in wanted:
        for listener in controllers[name][:1]:
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            address = f"{host}:{listener.port}"
            async with ControllerClient(address, timeout_ms=timeout_ms, dialer=dialer) as one:
                try:
                    answer = await one.call(DescribeControllerConfigsRequest())
                except ConnectionLostError as e:
                    # It does not answer: its dynamic values are known, but not its file.
                    if order.shows_all:
                        raise ConfigCommandError(
                            f"controller {name} is away, and only itself knows its file: {e}"
                        ) from e
                    described[name] = committed.get(name, [])
                    continue
            resource = ConfigResource(order.kind, name)
            entries = map(_said, answer.configs)
            described[name] = [e for e in entries if order.shows_all or _is_own(e, resource)]
    return described


def _said(config: DescribedConfig) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=ConfigSource(config.source),
        is_read_only=config.is_read_only,
        is_sensitive=config.is_sensitive,
        synonyms=tuple(
            ConfigSynonym(synonym.name, synonym.value, ConfigSource(synonym.source))
            for synonym in config.synonyms
        ),
    )


def _entry(key: str, value: str, order: Order, name: str) -> ConfigEntry:
    source = order.own_source
    if order.kind is ResourceType.BROKER and not name:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return ConfigEntry(
        name=key,
        value=value,
        source=source,
        is_read_only=False,
        synonyms=(ConfigSynonym(key, value, source),),
    )


# --- printing ------------------------------------------------------------------------------------


def _report(order: Order, described: Described) -> None:
    if order.as_json:
        echo_json({"version": 1, "entities": _document(order, described)})
        return
    kind = order.kind.name.lower()
    for name, entries in described.items():
        if order.kind is ResourceType.BROKER and not name:
            click.echo("Default configs for brokers in the cluster are:")
        else:
            click.echo(f"{'All' if order.shows_all else 'Dynamic'} configs for {kind} {name} are:")
        for entry in entries:
            click.echo(entry_line(entry))


def entry_line(entry: ConfigEntry) -> str:
    """Return the output line of Kafka's tool for one value."""
    synonyms = ", ".join(
        f"{synonym.source.name}:{synonym.name}={_shown(synonym.value)}"
        for synonym in entry.synonyms
    )
    sensitive = str(entry.is_sensitive).lower()
    return f"  {entry.name}={_shown(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _shown(value: str | None) -> str:
    return "null" if value is None else value


def _document(order: Order, described: Described) -> list[dict[str, object]]:
    return [
        {
            "type": order.kind.name.lower(),
            "name": name,
            "configs": [
                {
                    "name": entry.name,
                    "value": entry.value,
                    "source": entry.source.name,
                    "sensitive": entry.is_sensitive,
                    "readOnly": entry.is_read_only,
                    "synonyms": [
                        {"name": s.name, "value": s.value, "source": s.source.name}
                        for s in entry.synonyms
                    ],
                }
                for entry in entries
            ],
        }
        for name, entries in described.items()
    ]


def _report_altered(order: Order) -> None:
    kind = order.kind.name.lower()
    if order.as_json:
        echo_json({"version": 1, "altered": {"type": kind, "name": order.name}})
    elif order.name:
        click.echo(f"Completed updating config for {kind} {order.name}.")
    else:
        click.echo(f"Completed updating default config for {kind}s in the cluster.")


if __name__ == "__main__":
    main(prog_name="kraftjbod-configs")
