"""TLS settings of one listener, from its configuration."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from structlog.testing import capture_logs

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.daemon.tls.listener_tls import PrincipalMapper, open_tls
from tests.certificates import Authority

AUTHORITY = Authority()


async def test_open_tls_loads_the_context_and_logs_the_certificate(tmp_path: Path) -> None:
    path = AUTHORITY.issue("broker-1").write_pem(tmp_path / "k.pem")
    values = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(path),
        "ssl.handshake.timeout.ms": "5",
    }
    with capture_logs() as logs:
        tls = await open_tls(parse_model(ListenerConfig, values, "test"), "OUTER")
    assert isinstance(tls.context(), ssl.SSLContext)
    assert (tls.listener_name, tls.handshake_timeout_ms) == ("OUTER", 5)
    (event,) = logs
    assert (event["event"], event["subject"]) == ("tls_certificate_loaded", "CN=broker-1")


async def test_open_tls_error_names_the_listener() -> None:
    with pytest.raises(ConfigError, match=r"listener OUTER: ssl\.keystore\.location is not set"):
        await open_tls(ListenerConfig(), "OUTER")


def test_principal_is_mapped_from_the_certificate() -> None:
    certificate = AUTHORITY.issue("Alice", "ops").certificate.public_bytes(Encoding.DER)
    assert PrincipalMapper("DEFAULT")(certificate) == "User:CN=Alice,OU=ops"
    assert PrincipalMapper("RULE:CN=([^,]*).*/$1/L")(certificate) == "User:alice"
    assert PrincipalMapper("DEFAULT")(None) == "User:ANONYMOUS"
    with pytest.raises(ValueError, match=r"no rule of ssl\.principal\.mapping\.rules matches"):
        PrincipalMapper("RULE:x/y/")(certificate)
