"""TLS settings of one listener, from its configuration."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from structlog.testing import capture_logs

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.daemon.tls.listener_tls import ListenerTls, PrincipalMapper, open_tls
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from tests.certificates import Authority
from tests.faults.rig import ManualClock

AUTHORITY = Authority()
DAY_S = 86_400
PATIENCE_S = 30.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    executor = LogDirExecutor(name="tls", clock=ManualClock())
    yield Rig(tmp_path, executor)
    executor.shutdown()


class Rig:
    """A listener OUTER whose keystore and truststore are files below ``path``."""

    def __init__(self, path: Path, executor: LogDirExecutor) -> None:
        self.keystore = path / "k.pem"
        self.truststore = AUTHORITY.write_pem(path / "t.pem")
        self.clock = ManualClock(time.time_ns() // 1_000_000)
        self._executor = executor

    async def open(self, **values: str) -> ListenerTls:
        stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.truststore),
        }
        given = {key.replace("_", "."): value for key, value in values.items()}
        config = parse_model(ListenerConfig, {**stores, **given}, "test")
        return await open_tls(config, "OUTER", executor=self._executor, clock=self.clock)


async def test_open_tls_loads_the_context_and_logs_the_certificate(rig: Rig) -> None:
    AUTHORITY.issue("broker-1").write_pem(rig.keystore)
    with capture_logs() as logs:
        tls = (await rig.open(ssl_handshake_timeout_ms="5")).settings
    assert isinstance(tls.context(), ssl.SSLContext)
    assert (tls.listener_name, tls.handshake_timeout_ms) == ("OUTER", 5)
    (event,) = logs
    assert (event["event"], event["subject"]) == ("tls_certificate_loaded", "CN=broker-1")


async def test_open_tls_error_names_the_listener(rig: Rig) -> None:
    with pytest.raises(ConfigError, match=r"listener OUTER: ssl\.keystore\.location=.* cannot"):
        await rig.open()


async def test_renew_uses_changed_files_for_later_contexts(rig: Rig) -> None:
    AUTHORITY.issue("broker-1").write_pem(rig.keystore)
    tls = await rig.open()
    before = tls.settings.context()
    assert not await tls.renew()
    assert tls.settings.context() is before
    AUTHORITY.issue("broker-2").write_pem(rig.keystore)
    with capture_logs() as logs:
        assert await tls.renew()
    assert tls.settings.context() is not before
    (event,) = logs
    assert (event["event"], event["subject"]) == ("tls_certificate_renewed", "CN=broker-2")
    Authority("another").write_pem(rig.truststore)
    assert await tls.renew()


@pytest.mark.parametrize("fault", ["missing", "half-written", "wrong-key", "no-truststore"])
async def test_renew_keeps_the_context_and_reports_unusable_files_once(
    rig: Rig, fault: str
) -> None:
    one, other = AUTHORITY.issue("broker-1"), AUTHORITY.issue("broker-2")
    one.write_pem(rig.keystore)
    tls = await rig.open()
    before = tls.settings.context()
    match fault:
        case "missing":
            rig.keystore.unlink()
        case "half-written":
            rig.keystore.write_bytes(other.key_pem() + other.certificate_pem[:200])
        case "wrong-key":
            rig.keystore.write_bytes(other.key_pem() + one.certificate_pem)
        case "no-truststore":
            rig.truststore.write_bytes(b"")
    with capture_logs() as logs:
        for _ in range(3):
            assert not await tls.renew()
    assert tls.settings.context() is before
    assert [event["event"] for event in logs] == ["tls_renewal_failed"]
    assert logs[0]["listener"] == "OUTER"
    other.write_pem(rig.keystore)
    AUTHORITY.write_pem(rig.truststore)
    assert await tls.renew()


async def test_coming_expiry_is_reported_once_per_day(rig: Rig) -> None:
    AUTHORITY.issue("broker-1", days=20).write_pem(rig.keystore)
    tls = await rig.open(ssl_store_check_interval_ms="100")
    assert 19 * DAY_S < tls.seconds_until_expiry <= 20 * DAY_S
    with capture_logs() as logs:
        async with asyncio.timeout(PATIENCE_S):
            renewing = asyncio.create_task(tls.run_renewals())
            while not logs:
                await asyncio.sleep(0)
            # Each renewal checks the expiry again.
            for number in range(3):
                AUTHORITY.issue(f"broker-{number}", days=20).write_pem(rig.keystore)
                await tls.renew()
            warnings = [one for one in logs if one["event"] == "tls_certificate_expires_soon"]
            assert [one["subject"] for one in warnings] == ["CN=broker-1"]
            rig.clock.ms += DAY_S * 1000
            AUTHORITY.issue("broker-4", days=20).write_pem(rig.keystore)
            await tls.renew()
            renewing.cancel()
    warnings = [one for one in logs if one["event"] == "tls_certificate_expires_soon"]
    assert [one["subject"] for one in warnings] == ["CN=broker-1", "CN=broker-4"]


async def test_certificate_that_expires_later_is_not_reported(rig: Rig) -> None:
    AUTHORITY.issue("broker-1", days=31).write_pem(rig.keystore)
    tls = await rig.open()
    AUTHORITY.issue("broker-2", days=31).write_pem(rig.keystore)
    with capture_logs() as logs:
        await tls.renew()
    assert [one["event"] for one in logs] == ["tls_certificate_renewed"]


def test_principal_is_mapped_from_the_certificate() -> None:
    certificate = AUTHORITY.issue("Alice", "ops").certificate.public_bytes(Encoding.DER)
    assert PrincipalMapper("DEFAULT")(certificate) == "User:CN=Alice,OU=ops"
    assert PrincipalMapper("RULE:CN=([^,]*).*/$1/L")(certificate) == "User:alice"
    assert PrincipalMapper("DEFAULT")(None) == "User:ANONYMOUS"
    with pytest.raises(ValueError, match=r"no rule of ssl\.principal\.mapping\.rules matches"):
        PrincipalMapper("RULE:x/y/")(certificate)


async def test_use_config_loads_the_stores_of_another_configuration(rig: Rig) -> None:
    AUTHORITY.issue("broker-1").write_pem(rig.keystore)
    other = rig.keystore.with_name("other.pem")
    AUTHORITY.issue("broker-2").write_pem(other)
    tls = await rig.open()
    before = tls.settings.context()
    values = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(other)}
    config = parse_model(ListenerConfig, values, "test")
    await tls.check_config(lambda: config)
    assert not await tls.renew(), "a check changes nothing"
    tls.use_config(lambda: config)
    assert await tls.renew()
    assert "CN=broker-2" in repr(tls)
    assert tls.settings.context() is not before

    def unreadable() -> ListenerConfig:
        raise ConfigError("the reference has no file")

    tls.use_config(unreadable)
    with capture_logs() as logs:
        assert not await tls.renew()
        assert not await tls.renew()
    assert [log["event"] for log in logs] == ["tls_renewal_failed"], "reported once"
    assert "CN=broker-2" in repr(tls)
    with pytest.raises(ConfigError, match="no file"):
        await tls.check_config(unreadable)
