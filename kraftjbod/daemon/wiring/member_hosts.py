"""WIRE. ``MemberHosts``: the cluster's hosts, according to metadata and configuration.

A broker uses only the inter-broker listener of each broker. Behind the others may be a load
balancer, whose connections are clients'. A controller cannot know which listener that is, and uses
all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.node_config import ANY_HOST, NodeConfig
from kraftjbod.metadata.state import MetadataState


class MemberHosts:
    """Call it to get addresses and names: the same object while these are unchanged."""

    def __init__(
        self,
        configured: Iterable[str],
        *,
        state: Callable[[], MetadataState],
        registered: Callable[[MetadataState], Iterable[str]],
        others: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """
        :param configured: hosts named by the configuration.
        :param registered: return the hosts named by the metadata.
        :param others: return hosts of controllers that are known otherwise.
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
    """:param quorum: return the hosts of the controllers that this one talks to."""

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
    yield from (endpoint.host for endpoint in config.listeners if endpoint.host != ANY_HOST)


def _hosts_of_controllers(state: MetadataState) -> Iterable[str]:
    for controller in state.controllers.values():
        yield from (listener.host for listener in controller.listeners)
