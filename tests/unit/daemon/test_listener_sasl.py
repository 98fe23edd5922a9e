"""The SASL settings of a listener come from its configuration."""

from __future__ import annotations

import os

from kraftjbod.core.ids import Uuid
from kraftjbod.core.jaas import PLAIN_MODULE
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.core.scram import ScramCredential, ScramMechanism
from kraftjbod.daemon.listener_sasl import cluster_secret, sasl_settings
from kraftjbod.metadata.state import MetadataState
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits


def test_sasl_settings_have_the_values_and_users_of_the_listener() -> None:
    memory = MemoryBudget(MemoryLimits())
    config = ListenerConfig.model_validate(
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="secret";',
            "sasl.server.max.receive.size": 2048,
            "sasl.login.timeout.ms": 7,
            "connection.failed.authentication.delay.ms": 8,
            "connections.max.reauth.ms": 9,
        }
    )
    state = MetadataState()
    made = sasl_settings(
        config,
        memory,
        state=lambda: state,
        cluster_id="cluster",
        random_bytes=os.urandom,
        wall_ms=lambda: 0,
    )
    assert (made.max_receive_bytes, made.timeout_ms) == (2048, 7)
    assert (made.failure_delay_ms, made.max_reauth_ms) == (8, 9)
    assert made.memory is memory
    assert [*made.mechanisms] == ["SCRAM-SHA-512", "PLAIN"]
    assert made.mechanisms["PLAIN"]().respond(b"\0alice\0secret").user == "alice"


def test_scram_credentials_come_from_the_present_metadata() -> None:
    states = [MetadataState()]
    config = ListenerConfig.model_validate({"sasl.enabled.mechanisms": "SCRAM-SHA-256"})
    made = sasl_settings(
        config,
        MemoryBudget(MemoryLimits()),
        state=lambda: states[-1],
        cluster_id="cluster",
        random_bytes=os.urandom,
        wall_ms=lambda: 0,
    )
    first = b"n,,n=alice,r=client"
    unknown = made.mechanisms["SCRAM-SHA-256"]().respond(first).token
    states.append(MetadataState())
    states[-1].scram_credentials[ScramMechanism.SCRAM_SHA_256, "alice"] = ScramCredential(
        salt=b"salt", stored_key=b"", server_key=b"", iterations=8192
    )
    known = made.mechanisms["SCRAM-SHA-256"]().respond(first).token
    assert b"i=4096" in unknown and b",s=c2FsdA==,i=8192" in known


def test_cluster_secret_is_the_id_of_the_metadata_log() -> None:
    state = MetadataState()
    assert cluster_secret(state, "cluster") == b"cluster"
    state.metadata_log_id = Uuid(bytes(range(16)))
    assert cluster_secret(state, "cluster") == bytes(range(16))
