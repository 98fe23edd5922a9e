"""The SASL settings of a listener come from its configuration."""

from __future__ import annotations

from kraftjbod.core.jaas import PLAIN_MODULE
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.daemon.listener_sasl import sasl_settings
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits


def test_sasl_settings_have_the_values_and_users_of_the_listener() -> None:
    memory = MemoryBudget(MemoryLimits())
    config = ListenerConfig.model_validate(
        {
            "sasl.enabled.mechanisms": "PLAIN",
            "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="secret";',
            "sasl.server.max.receive.size": 2048,
            "sasl.login.timeout.ms": 7,
            "connection.failed.authentication.delay.ms": 8,
            "connections.max.reauth.ms": 9,
        }
    )
    made = sasl_settings(config, memory)
    assert (made.max_receive_bytes, made.timeout_ms) == (2048, 7)
    assert (made.failure_delay_ms, made.max_reauth_ms) == (8, 9)
    assert made.memory is memory
    assert [*made.mechanisms] == ["PLAIN"]
    assert made.mechanisms["PLAIN"]().respond(b"\0alice\0secret").user == "alice"
