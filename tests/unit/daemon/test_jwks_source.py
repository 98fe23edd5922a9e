"""Keys of an identity provider: refreshes, outages, rotation and the limit of early reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.oauthbearer_config import OauthbearerConfig
from kraftjbod.daemon.jwks_source import JwksSource
from kraftjbod.daemon.process.environment import SystemClock
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from tests.identity_provider import IdentityProvider

PATIENCE_S = 30.0


class Rig:
    def __init__(self, url: str, provider: IdentityProvider, executor: LogDirExecutor) -> None:
        self.url, self.provider, self._executor = url, provider, executor

    def source(self, url: str | None = None, interval_ms: int = 0, **values: str) -> JwksSource:
        prefix = "sasl.oauthbearer.jwks.endpoint."
        given = {f"{prefix}{key.replace('_', '.')}": value for key, value in values.items()}
        config = parse_model(
            OauthbearerConfig, {f"{prefix}url": url or f"{self.url}/jwks", **given}, "test"
        )
        return JwksSource(
            config,
            "OUTER",
            executor=self._executor,
            clock=SystemClock(),
            random_unit=lambda: 0.5,
            unknown_key_interval_ms=interval_ms,
        )

    @property
    def reads(self) -> int:
        return self.provider.requests.get("/jwks", 0)


@pytest.fixture
def rig() -> Iterator[Rig]:
    provider = IdentityProvider()
    executor = LogDirExecutor(name="jwks", clock=SystemClock())
    with provider.serving() as url:
        yield Rig(url, provider, executor)
    executor.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def ids(source: JwksSource) -> list[str | None]:
    return [key.key_id for key in source.jwks.keys]


async def test_jwks_are_loaded_once_and_logged(rig: Rig) -> None:
    source = rig.source()
    with capture_logs() as logs:
        await source.open()
        assert await source.refresh()
    assert ids(source) == ["first"]
    (line,) = logs
    assert (line["event"], line["listener"], line["keys"]) == ("jwks_loaded", "OUTER", 1)


async def test_stale_keys_are_kept_while_the_server_is_away_and_one_event_says_so(
    rig: Rig,
) -> None:
    source = rig.source(retry_backoff_ms="1", retry_backoff_max_ms="1")
    await source.open()
    rig.provider.is_away = True
    rig.provider.rotate("second")
    source.report_unknown_key()
    with capture_logs() as logs:
        task = asyncio.create_task(source.run_refreshes())
        await until(lambda: rig.reads >= 5)
        assert ids(source) == ["first"]
        rig.provider.is_away = False
        await until(lambda: ids(source) == ["second"])
        task.cancel()
    assert [line["event"] for line in logs] == ["jwks_refresh_failed", "jwks_loaded"]
    assert "status 503" in logs[0]["reason"] and logs[0]["keys"] == 1


async def test_server_that_is_away_does_not_keep_a_broker_from_its_start(rig: Rig) -> None:
    rig.provider.is_away = True
    source = rig.source(retry_backoff_ms="1")
    await source.open()
    assert ids(source) == []
    task = asyncio.create_task(source.run_refreshes())
    rig.provider.is_away = False
    await until(lambda: ids(source) == ["first"])
    task.cancel()


async def test_file_that_cannot_be_used_is_a_configuration_error(rig: Rig, tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    with pytest.raises(ConfigError, match=r"listener OUTER.*No such file"):
        await rig.source(f"file://{path}").open()
    path.write_text("{}")
    with pytest.raises(ConfigError, match='list "keys"'):
        await rig.source(f"file://{path}").open()
    path.write_bytes(rig.provider.jwks())
    source = rig.source(f"file://{path}")
    await source.open()
    path.write_text("{")
    assert not await source.refresh()
    assert ids(source) == ["first"]


async def test_unknown_keys_cause_one_early_read_per_interval(rig: Rig) -> None:
    source = rig.source(interval_ms=3_600_000)
    await source.open()
    task = asyncio.create_task(source.run_refreshes())
    for _ in range(50):
        source.report_unknown_key()
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert rig.reads == 1
    task.cancel()
    early = rig.source(interval_ms=1)
    task = asyncio.create_task(early.run_refreshes())
    early.report_unknown_key()
    await until(lambda: rig.reads == 2)
    task.cancel()


async def test_one_read_is_in_flight_and_a_slow_one_is_reported(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kraftjbod.daemon.jwks_source.READ_DEADLINE_S", 0.0)
    source = rig.source()
    with capture_logs() as logs:
        assert await source.refresh()
    assert [line["event"] for line in logs] == ["jwks_refresh_failed", "jwks_loaded"]
    assert "is still being read" in logs[0]["reason"]
