"""The keys that verify tokens, of all listeners of a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.daemon.listener_oauth import ListenerOauth
from kraftjbod.daemon.process.environment import Environment
from tests.identity_provider import AUDIENCE, ISSUER, IdentityProvider


def broker(path: Path) -> BrokerConfig:
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.voters": "100@127.0.0.1:9095",
        "listeners": "PLAINTEXT://:9092,TOKENS://:9093,WORDS://:9094",
        "listener.security.protocol.map": "TOKENS:SASL_PLAINTEXT,WORDS:SASL_PLAINTEXT",
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{path}",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    return BrokerConfig.from_properties(values, source="x.properties", base_dir="/")


async def test_only_listeners_with_oauthbearer_have_keys(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(IdentityProvider().jwks())
    oauth = ListenerOauth(broker(path), Environment())
    await oauth.open_listeners()
    refreshes = asyncio.create_task(oauth.run_refreshes())
    keys = oauth.keys_of("TOKENS")
    assert keys is not None and keys.jwks.has_key("first")
    assert oauth.keys_of("WORDS") is None and oauth.keys_of("PLAINTEXT") is None
    refreshes.cancel()
    oauth.close()


async def test_broker_does_not_start_without_its_file_of_keys(tmp_path: Path) -> None:
    oauth = ListenerOauth(broker(tmp_path / "missing"), Environment())
    with pytest.raises(ConfigError, match="listener TOKENS"):
        await oauth.open_listeners()
    oauth.close()
