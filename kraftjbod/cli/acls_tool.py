"""WIRE. ``kraftjbod-acls``: adds, removes and lists access control lists.

Flags, defaults and lines are those of Kafka's kafka-acls.sh. ``--bootstrap-controller`` is left
out, because the controllers answer no request that lists bindings.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from kraftjbod.cli.clients.acl_admin import create_acls, delete_acls, describe_acls
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    connection_options,
    tool,
)
from kraftjbod.core.acl import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    WILDCARD_HOST,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

Resource = tuple[AclResourceType, str]
_Op = AclOperation
_ALLOW, _DENY = AclPermission.ALLOW, AclPermission.DENY
_OF_PRODUCER: Final = (_Op.WRITE, _Op.DESCRIBE, _Op.CREATE)
_OF_TRANSACTIONS: Final = (_Op.WRITE, _Op.DESCRIBE)
_OF_CONSUMER: Final = (_Op.READ, _Op.DESCRIBE)
_OF_GROUP: Final = (_Op.READ,)
_PATTERNS: Final = ("any", "match", "literal", "prefixed")
_NO_RESOURCE: Final = (
    "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or "
    "--transactional-id <id>"
)
_NO_PRINCIPAL: Final = (
    "You must specify one of: --allow-principal, --deny-principal when trying to add ACLs."
)
#: Operations by the names in which users write them, such as ``DescribeConfigs``.
_OPERATIONS: Final[Mapping[str, AclOperation]] = {
    operation.name.replace("_", "").lower(): operation
    for operation in AclOperation
    if operation not in (_Op.UNKNOWN, _Op.ANY)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The flags of one ``kraftjbod-acls`` command.

    ``topics``, ``groups``, ``transactional_ids`` and ``is_cluster`` select resources. ``allowed``
    and ``denied`` are principals, ``allow_hosts`` and ``deny_hosts`` the hosts for which they are
    allowed or denied; no hosts are all hosts. ``principals`` restricts the output of ``--list``.
    """

    topics: tuple[str, ...]
    groups: tuple[str, ...]
    transactional_ids: tuple[str, ...]
    is_cluster: bool
    pattern: AclPatternType
    operations: tuple[AclOperation, ...]
    allowed: tuple[str, ...]
    denied: tuple[str, ...]
    allow_hosts: tuple[str, ...]
    deny_hosts: tuple[str, ...]
    is_producer: bool
    is_consumer: bool
    is_idempotent: bool
    is_forced: bool
    principals: tuple[str, ...]

    def resources(self) -> Iterator[Resource]:
        yield from ((AclResourceType.TOPIC, name.strip()) for name in self.topics)
        if self.is_cluster or (self.is_idempotent and self.is_producer):
            yield AclResourceType.CLUSTER, CLUSTER_NAME
        yield from ((AclResourceType.GROUP, name.strip()) for name in self.groups)
        yield from (
            (AclResourceType.TRANSACTIONAL_ID, name.strip()) for name in self.transactional_ids
        )

    def bindings(self, resource: Resource) -> list[AclBinding]:
        """Return the bindings of the flags on one resource; none without principals."""
        allow_hosts, deny_hosts = self.allow_hosts or (WILDCARD_HOST,), self.deny_hosts
        return [
            AclBinding(*resource, self.pattern, principal, host, operation, permission)
            for principals, hosts, permission in (
                (self.allowed, allow_hosts, _ALLOW),
                (self.denied, deny_hosts or (WILDCARD_HOST,), _DENY),
            )
            for principal in principals
            for host in hosts
            for operation in self._operations_on(resource[0])
        ]

    def _operations_on(self, kind: AclResourceType) -> Sequence[AclOperation]:
        if not (self.is_producer or self.is_consumer):
            return self.operations or (_Op.ALL,)
        found: dict[AclOperation, None] = {}
        if self.is_producer:
            found |= dict.fromkeys(
                {
                    AclResourceType.TOPIC: _OF_PRODUCER,
                    AclResourceType.TRANSACTIONAL_ID: _OF_TRANSACTIONS,
                    AclResourceType.CLUSTER: (_Op.IDEMPOTENT_WRITE,),
                }.get(kind, ())
            )
        if self.is_consumer:
            found |= dict.fromkeys(
                {AclResourceType.TOPIC: _OF_CONSUMER, AclResourceType.GROUP: _OF_GROUP}.get(
                    kind, ()
                )
            )
        return tuple(found)


@tool()
@connection_options
@click.option("--add", "action", flag_value="add", help="Add bindings.")
@click.option("--remove", "action", flag_value="remove", help="Remove bindings.")
@click.option("--list", "action", flag_value="list", help="List the bindings of the resources.")
@click.option("--topic", "topics", multiple=True, help="Topic, or * for all; may be repeated.")
@click.option("--group", "groups", multiple=True, help="Group, or * for all; may be repeated.")
@click.option("--transactional-id", "transactional_ids", multiple=True, help="May be repeated.")
@click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself.")
@click.option(
    "--resource-pattern-type",
    "pattern",
    type=click.Choice(_PATTERNS, case_sensitive=False),
    default="literal",
    show_default=True,
    help="How names are compared; any and match only with --list and --remove.",
)
@click.option("--operation", "operations", multiple=True, help="May be repeated; default All.")
@click.option("--allow-principal", "allowed", multiple=True, metavar="TYPE:NAME")
@click.option("--deny-principal", "denied", multiple=True, metavar="TYPE:NAME")
@click.option("--allow-host", "allow_hosts", multiple=True, help="Default: * for all hosts.")
@click.option("--deny-host", "deny_hosts", multiple=True, help="Default: * for all hosts.")
@click.option("--principal", "principals", multiple=True, help="Only with --list; may be repeated.")
@click.option("--producer", "is_producer", is_flag=True, help="All rights of a producer.")
@click.option("--consumer", "is_consumer", is_flag=True, help="All rights of a consumer.")
@click.option("--idempotent", "is_idempotent", is_flag=True, help="Only with --producer.")
@click.option("--force", "is_forced", is_flag=True, help="Remove without a question.")
@answering
def main(
    answer: Answer,
    cluster: ClusterAddress,
    action: str | None,
    pattern: str,
    operations: tuple[str, ...],
    **flags: Any,
) -> None:
    """Add, remove and list access control lists."""
    order = Order(
        pattern=AclPatternType[pattern.upper()],
        operations=tuple(map(_operation, operations)),
        **flags,
    )
    _require_sense(action, order)
    asyncio.run(_run(answer, cluster, action, order))


def _operation(text: str) -> AclOperation:
    found = _OPERATIONS.get(text.replace("_", "").lower())
    if found is None:
        raise click.UsageError(f"{text} is no operation: use {', '.join(sorted(_OPERATIONS))}")
    return found


def _require_sense(action: str | None, order: Order) -> None:
    """Check the combination of flags, with the texts of Kafka's tool.

    :raises click.UsageError: flags exclude each other, or one is missing.
    """
    if action is None:
        raise click.UsageError("Command must include exactly one action: --list, --add, --remove. ")
    if order.principals and action != "list":
        raise click.UsageError("The --principal option is only available if --list is set")
    _require_role(order)
    if (order.allow_hosts and not order.allowed) or (order.deny_hosts and not order.denied):
        raise click.UsageError(
            "--allow-host needs --allow-principal, and --deny-host needs --deny-principal"
        )
    if action == "list":
        return
    if not any(order.resources()):
        raise click.UsageError(_NO_RESOURCE)
    if action == "add":
        _require_new(order)
    for kind, _ in order.resources():
        supported = OPERATIONS_OF[kind] | {_Op.ALL}
        if not supported.issuperset(order.operations):
            names = ",".join(sorted(one.name for one in supported))
            raise click.UsageError(f"ResourceType {kind.name} only supports operations {names}")


def _require_role(order: Order) -> None:
    if order.is_idempotent and not order.is_producer:
        raise click.UsageError("The --idempotent option is only available if --producer is set")
    if not (order.is_producer or order.is_consumer):
        return
    if order.operations or order.denied or order.deny_hosts:
        raise click.UsageError(
            "Option --producer or --consumer excludes --operation, --deny-principal and --deny-host"
        )
    if not order.topics:
        raise click.UsageError("With --producer or --consumer you must specify a --topic")
    if order.is_consumer and not order.groups:
        raise click.UsageError("With --consumer you must specify a --topic and a --group")


def _require_new(order: Order) -> None:
    if not (order.allowed or order.denied):
        raise click.UsageError(_NO_PRINCIPAL)
    if order.pattern not in (AclPatternType.LITERAL, AclPatternType.PREFIXED):
        raise click.UsageError(
            "A '--resource-pattern-type' value of 'Any' or 'Match' is not valid when adding acls."
        )


async def _run(answer: Answer, cluster: ClusterAddress, action: str | None, order: Order) -> None:
    resources = [*order.resources()]
    async with cluster.connect() as client:
        if action == "add":
            for resource in resources:
                await _add(answer, client, _filter(order, resource), order.bindings(resource))
        elif action == "remove":
            for resource in resources:
                chosen, bindings = _filter(order, resource), order.bindings(resource)
                await _remove(answer, client, chosen, bindings, is_forced=order.is_forced)
        else:
            filters = [_filter(order, resource) for resource in resources]
            everything = [AclFilter(pattern_type=AclPatternType.ANY)]
            await _list(answer, client, filters or everything, order)


async def _add(
    answer: Answer, client: ClusterClient, chosen: AclFilter, bindings: Sequence[AclBinding]
) -> None:
    known = set(await describe_acls(client, chosen))
    for binding in bindings:
        if binding in known:
            answer.say(
                f"Acl (pattern={_pattern(binding)}, entry={_entry(binding)}) already exists.",
                existing=[_document(binding)],
            )
    new = [binding for binding in bindings if binding not in known]
    if new:
        answer.say(f"Adding ACLs for resource `{_pattern(new[0])}`: \n {_lines(new)} \n")
        await create_acls(client, new)
        answer.say(None, added=list(map(_document, new)))


def _filter(order: Order, resource: Resource) -> AclFilter:
    return AclFilter(*resource, order.pattern)


async def _remove(
    answer: Answer,
    client: ClusterClient,
    chosen: AclFilter,
    bindings: Sequence[AclBinding],
    *,
    is_forced: bool,
) -> None:
    where = _pattern_text(chosen.resource_type, chosen.resource_name, chosen.pattern_type)
    if bindings:
        question = (
            f"Are you sure you want to remove ACLs: \n {_lines(bindings)} \n from resource filter "
            f"`{where}`? (y/n)"
        )
        filters = [
            replace(
                chosen,
                principal=one.principal,
                host=one.host,
                operation=one.operation,
                permission=one.permission,
            )
            for one in bindings
        ]
    else:
        question = f"Are you sure you want to delete all ACLs for resource filter `{where}`? (y/n)"
        filters = [chosen]
    if not is_forced:
        click.echo(question, err=answer.is_json)
        if sys.stdin.readline().strip().lower() != "y":
            return
    await delete_acls(client, filters)
    answer.say(None, is_removed=True)


async def _list(
    answer: Answer, client: ClusterClient, filters: Sequence[AclFilter], order: Order
) -> None:
    answer.say(None, bindings=[])
    if not order.principals:
        for chosen in filters:
            _say_current(answer, await describe_acls(client, chosen))
        return
    for principal in order.principals:
        answer.say(f"ACLs for principal `{principal}`")
        for chosen in filters:
            _say_current(answer, await describe_acls(client, replace(chosen, principal=principal)))


def _say_current(answer: Answer, bindings: Sequence[AclBinding]) -> None:
    by_pattern: dict[str, list[AclBinding]] = {}
    for binding in bindings:
        by_pattern.setdefault(_pattern(binding), []).append(binding)
    for pattern in sorted(by_pattern):
        found = by_pattern[pattern]
        answer.say(
            f"Current ACLs for resource `{pattern}`: \n {_lines(found)} \n",
            bindings=list(map(_document, found)),
        )


def _document(binding: AclBinding) -> dict[str, str]:
    return {
        "resourceType": binding.resource_type.name,
        "resourceName": binding.resource_name,
        "patternType": binding.pattern_type.name,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.name,
        "permissionType": binding.permission.name,
    }


def _pattern(binding: AclBinding) -> str:
    return _pattern_text(binding.resource_type, binding.resource_name, binding.pattern_type)


def _pattern_text(kind: AclResourceType, name: str | None, pattern: AclPatternType) -> str:
    shown = "null" if name is None else name
    return f"ResourcePattern(resourceType={kind.name}, name={shown}, patternType={pattern.name})"


def _entry(binding: AclBinding) -> str:
    return (
        f"(principal={binding.principal}, host={binding.host}, "
        f"operation={binding.operation.name}, permissionType={binding.permission.name})"
    )


def _lines(bindings: Sequence[AclBinding]) -> str:
    return "\n".join(f"\t{_entry(binding)}" for binding in bindings)


if __name__ == "__main__":
    main(prog_name="kraftjbod-acls")
