"""WIRE. ``sasl_settings``: the SASL settings of one listener of a broker."""

from __future__ import annotations

from functools import partial

from kraftjbod.broker.security.plain_mechanism import PlainMechanism, plain_digests
from kraftjbod.core.sasl_config import PLAIN, SaslConfig, plain_users
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.net.sasl_mechanism import MakeSaslMechanism


def sasl_settings(config: SaslConfig, memory: MemoryBudget) -> SaslSettings:
    """Return the settings of a listener.

    :param config: values for the listener, which were checked.
    :param memory: budget of the connections without a login, of all listeners.
    """
    return SaslSettings(
        mechanisms={name: _mechanism(name, config) for name in config.sasl_enabled_mechanisms},
        memory=memory,
        max_receive_bytes=config.sasl_server_max_receive_size,
        timeout_ms=config.sasl_login_timeout_ms,
        failure_delay_ms=config.connection_failed_authentication_delay_ms,
        max_reauth_ms=config.connections_max_reauth_ms,
    )


def _mechanism(name: str, config: SaslConfig) -> MakeSaslMechanism:
    assert name == PLAIN, name
    return partial(PlainMechanism, plain_digests(plain_users(config)))
