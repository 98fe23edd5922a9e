"""TLS of a daemon's listeners and of its connections to other nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.tls.node_tls import NodeTls
from kraftjbod.net.dialer import PLAIN
from tests.certificates import Authority

AUTHORITY = Authority()
PATIENCE_S = 30.0


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    return AUTHORITY.issue("broker-1").write_pem(tmp_path / "k.pem")


def broker(keystore: Path, **more: str) -> BrokerConfig:
    """Return the configuration of a broker with two listeners with TLS."""
    values = {
        "process.roles": "broker",
        "node.id": "1",
        "log.dirs": "/d1",
        "controller.quorum.voters": "100@127.0.0.1:9095",
        "listeners": "PLAINTEXT://:9092,INNER://:9093,OUTER://:9094",
        "listener.security.protocol.map": "INNER:SSL,OUTER:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "INNER",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.pem.decode(),
        "ssl.store.check.interval.ms": "100",
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    return BrokerConfig.from_properties(values, source="test", base_dir="/")


async def test_metric_has_the_seconds_until_each_listeners_certificate_expires(
    keystore: Path,
) -> None:
    environment = Environment()
    tls = NodeTls(broker(keystore), environment)
    assert environment.metrics.snapshot() == {}
    await tls.open_listeners()
    found = environment.metrics.snapshot()
    assert sorted(found) == [
        f'CertificateSecondsUntilExpiry,listener="{name}"'
        for name in ("CONTROLLER", "INNER", "OUTER")
    ]
    assert all(364 * 86_400 < seconds <= 365 * 86_400 for seconds in found.values())
    tls.close()


async def test_listener_without_tls_has_no_settings_and_the_plain_dialer(keystore: Path) -> None:
    tls = NodeTls(broker(keystore), Environment())
    await tls.open_listeners()
    assert tls.settings_of("PLAINTEXT") is None
    assert tls.dialer_of("PLAINTEXT") is PLAIN
    for name in ("INNER", "CONTROLLER"):
        assert tls.dialer_of(name) is not PLAIN
    settings = tls.settings_of("OUTER")
    assert settings is not None and settings.listener_name == "OUTER"
    tls.close()


async def test_node_tls_error_names_the_listener(keystore: Path) -> None:
    tls = NodeTls(broker(keystore, listener_name_outer_ssl_keystore_location="/x"), Environment())
    with pytest.raises(ConfigError, match=r"OUTER: ssl\.keystore\.location=/x cannot"):
        await tls.open_listeners()
    tls.close()


async def test_run_renewals_renews_each_listener(keystore: Path) -> None:
    tls = NodeTls(broker(keystore), Environment())
    await tls.open_listeners()
    settings = [one for name in ("INNER", "OUTER") if (one := tls.settings_of(name)) is not None]
    before = [one.context() for one in settings]
    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            renewing = asyncio.create_task(tls.run_renewals())
            AUTHORITY.issue("broker-2").write_pem(keystore)
            while len(logs) < 3:
                await asyncio.sleep(0.01)
            renewing.cancel()
    assert {(one["event"], one["listener"]) for one in logs} == {
        ("tls_certificate_renewed", "CONTROLLER"),
        ("tls_certificate_renewed", "INNER"),
        ("tls_certificate_renewed", "OUTER"),
    }
    assert all(one.context() is not old for one, old in zip(settings, before, strict=True))
    tls.close()
