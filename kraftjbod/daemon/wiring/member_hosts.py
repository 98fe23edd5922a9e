"""WIRE. ``MemberHosts``: the hosts of the cluster, according to metadata and configuration.

A broker counts only the inter-broker listener of each broker. The addresses of other listeners may
be a load balancer's, which forwards connections of clients. A controller does not know which
listener is the inter-broker one, and counts all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.listener_config import is_wildcard
from kraftjbod.core.node_config import NodeConfig
from kraftjbod.metadata.state import MetadataState


class MemberHosts:
    """Callable that returns the addresses and names of the members' hosts.

    A call returns the same object while the hosts are unchanged.
    """

    def __init__(
        self,
        configured: Iterable[str],
        *,
        state: Callable[[], MetadataState],
        registered: Callable[[MetadataState], Iterable[str]],
        others: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """:param configured: hosts named by the configuration.
        :param state: return the current metadata.
        :param registered: return the hosts that the given metadata names.
        :param others: return further hosts, which neither configuration nor metadata name.
        """
        self._configured = frozenset(configured)
        self._state = state
        self._registered = registered
        self._others = others
        #: The values from which ``_hosts`` was computed.
        self._as_of: tuple[int, int, frozenset[str]] | None = None
        self._hosts = self._configured

    def __call__(self) -> frozenset[str]:
        state = self._state()
        as_of = (state.offset, state.epoch, frozenset(self._others()))
        if as_of != self._as_of:
            self._as_of = as_of
            hosts = self._configured.union(as_of[2], self._registered(state))
            if hosts != self._hosts:
                self._hosts = hosts
        return self._hosts


def hosts_known_to_broker(
    config: BrokerConfig, state: Callable[[], MetadataState]
) -> Callable[[], frozenset[str]]:
    own = [one.host for one in config.advertised if one.name == config.inter_broker_listener]

    def registered(state: MetadataState) -> Iterable[str]:
        for broker in state.brokers.values():
            for listener in broker.listeners:
                if listener.name == config.inter_broker_listener:
                    yield listener.host
        yield from _hosts_of_controllers(state)

    return MemberHosts([*_configured(config), *own], state=state, registered=registered)


def hosts_known_to_controller(
    config: ControllerConfig,
    state: Callable[[], MetadataState],
    quorum: Callable[[], Iterable[str]],
) -> Callable[[], frozenset[str]]:
    """Return a callable with the hosts of all brokers and controllers.

    :param quorum: return the hosts of the controllers that exchange messages with this one.
    """

    def registered(state: MetadataState) -> Iterable[str]:
        for broker in state.brokers.values():
            yield from (listener.host for listener in broker.listeners)
        yield from _hosts_of_controllers(state)

    own = config.advertised_endpoint.host
    return MemberHosts(
        [*_configured(config), own], state=state, registered=registered, others=quorum
    )


def _configured(config: NodeConfig) -> Iterable[str]:
    yield from (host for host, _ in config.controller_addresses)
    yield from (one.host for one in config.listeners if not is_wildcard(one.host))


def _hosts_of_controllers(state: MetadataState) -> Iterable[str]:
    for controller in state.controllers.values():
        yield from (listener.host for listener in controller.listeners)
