"""TLS of all listeners of a daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.tls.node_tls import NodeTls
from tests.certificates import Authority

AUTHORITY = Authority()
PATIENCE_S = 30.0


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    return AUTHORITY.issue("broker-1").write_pem(tmp_path / "k.pem")


def listener_config(keystore: Path) -> ListenerConfig:
    values = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.store.check.interval.ms": "100",
    }
    return parse_model(ListenerConfig, values, "test")


async def test_metric_has_the_seconds_until_each_listeners_certificate_expires(
    keystore: Path,
) -> None:
    environment = Environment()
    tls = NodeTls(environment)
    assert environment.metrics.snapshot() == {}
    for name in ("INNER", "OUTER"):
        await tls.open_listener(listener_config(keystore), name)
    found = environment.metrics.snapshot()
    assert sorted(found) == [
        'CertificateSecondsUntilExpiry,listener="INNER"',
        'CertificateSecondsUntilExpiry,listener="OUTER"',
    ]
    assert all(364 * 86_400 < seconds <= 365 * 86_400 for seconds in found.values())
    tls.close()


async def test_run_renewals_renews_each_listener(keystore: Path) -> None:
    tls = NodeTls(Environment())
    settings = [
        await tls.open_listener(listener_config(keystore), name) for name in ("INNER", "OUTER")
    ]
    before = [one.context() for one in settings]
    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            renewing = asyncio.create_task(tls.run_renewals())
            AUTHORITY.issue("broker-2").write_pem(keystore)
            while len(logs) < 2:
                await asyncio.sleep(0.01)
            renewing.cancel()
    assert {(one["event"], one["listener"]) for one in logs} == {
        ("tls_certificate_renewed", "INNER"),
        ("tls_certificate_renewed", "OUTER"),
    }
    assert all(one.context() is not old for one, old in zip(settings, before, strict=True))
    tls.close()
