"""WIRE. Build the authorizer of a node, and the access of each request to a broker."""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.broker.access import Access, Record
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.node_config import NodeConfig
from kraftjbod.net.connection_context import ANONYMOUS, ConnectionContext


def build_authorizer(config: NodeConfig) -> StandardAuthorizer | None:
    """Return an authorizer without bindings; None if ``authorizer.class.name`` is not set."""
    if not config.authorizer_class_name:
        return None
    return StandardAuthorizer(
        super_users=config.super_user_principals,
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )


def access_maker(
    config: BrokerConfig,
    authorizer: StandardAuthorizer,
    *,
    is_member: Callable[[ConnectionContext], bool],
    record: Record,
) -> Callable[[RequestContext, str], Access]:
    """Return a function that creates the access of a request, from its context and the API's name.

    A request counts as a broker's if it came from a member on the listener between brokers, with
    the principal of a node, or with no principal if ``cluster.node.principals`` is not set.

    :param is_member: returns whether a connection is a member's, by its address and, if
        ``cluster.node.principals`` is set, by its principal.
    :param record: receives the checks that belong into the audit.
    """
    between_brokers = config.inter_broker_listener
    has_node_principals = config.node_principals is not None

    def make_access(context: RequestContext, api: str) -> Access:
        connection = context.connection
        is_broker = (
            connection.listener_name == between_brokers
            and (has_node_principals or connection.principal == ANONYMOUS)
            and is_member(connection)
        )
        return Access(
            authorizer,
            principal=connection.principal,
            host=connection.peer_host,
            listener_name=connection.listener_name,
            api=api,
            is_broker=is_broker,
            record=record,
        )

    return make_access
