"""WIRE. ``JwksSource``: the present keys of an identity provider, for one listener.

* The document is read in a separate thread, with a deadline and a limit of its size, so that
  neither a slow server nor a hanging disk delays the event loop. One read is in flight at a time.
* The last usable keys stay in use while the document cannot be read.
* A token with an unknown key causes an earlier read, at most one in ten seconds, so that clients
  with made-up tokens cannot flood the identity provider.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from kraftjbod.broker.security.jwks import MAX_JWKS_BYTES, Jwks, parse_jwks
from kraftjbod.core.errors import ConfigError, ConnectionLostError
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.oauthbearer_config import OauthbearerConfig
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.url_document import UrlRequest, read_url
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor

_log = get_logger()
#: Time limit of each step of a read.
READ_TIMEOUT_S: Final = 10.0
#: A read that has not ended then is reported. The next one begins when it has ended.
READ_DEADLINE_S: Final = 30.0
#: Shortest time between two reads because of unknown keys.
UNKNOWN_KEY_INTERVAL_MS: Final = 10_000


class JwksSource:
    """Reads the JWKS document of one listener, and reads it again until :meth:`run_refreshes` is
    cancelled."""

    def __init__(
        self,
        config: OauthbearerConfig,
        listener_name: str,
        *,
        executor: LogDirExecutor,
        clock: Clock,
        random_unit: Callable[[], float],
        unknown_key_interval_ms: int = UNKNOWN_KEY_INTERVAL_MS,
    ) -> None:
        url = config.sasl_oauthbearer_jwks_endpoint_url
        assert url is not None, "require_oauthbearer has checked the configuration"
        self._request = UrlRequest(url=url, max_bytes=MAX_JWKS_BYTES, timeout_s=READ_TIMEOUT_S)
        self._refresh_ms = config.sasl_oauthbearer_jwks_endpoint_refresh_ms
        initial_ms = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms
        self._backoff = ExponentialBackoff(
            initial_ms=initial_ms,
            max_ms=max(initial_ms, config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms),
            random_unit=random_unit,
        )
        self._interval_ms = unknown_key_interval_ms
        self._listener_name = listener_name
        self._executor = executor
        self._clock = clock
        self._document = b""
        self._jwks = Jwks()
        self._is_wanted = asyncio.Event()
        self._failures = 0
        #: The reason that was logged last, so that an outage is one event.
        self._logged: str | None = None

    def __repr__(self) -> str:
        return f"<JwksSource {self._request.shown_url} keys={len(self._jwks.keys)}>"

    @property
    def jwks(self) -> Jwks:
        """The keys of the newest usable document; without keys before the first one."""
        return self._jwks

    def report_unknown_key(self) -> None:
        """Read the document again soon, because a token was signed with another key."""
        self._is_wanted.set()

    async def open(self) -> None:
        """Read the document for the first time.

        :raises ConfigError: it is a file that cannot be used. The server of another document may
            be away, which must not keep a broker from its start.
        """
        if not await self.refresh() and self._request.url.startswith("file:"):
            raise ConfigError(
                f"listener {self._listener_name}: sasl.oauthbearer.jwks.endpoint.url: "
                f"{self._logged}"
            )

    async def run_refreshes(self) -> None:
        """Read the document when it is due, until cancelled."""
        while True:
            await self._wait_until_due()
            await self.refresh()

    async def refresh(self) -> bool:
        """Read the document now; return whether it can be used."""
        self._is_wanted.clear()
        reading = asyncio.ensure_future(self._read())
        try:
            ended, _ = await asyncio.wait({reading}, timeout=READ_DEADLINE_S)
            if not ended:
                self._log_failure(f"{self._request.shown_url} is still being read")
            document, jwks = await reading
        except (ConfigError, ConnectionLostError) as e:
            self._failures += 1
            self._log_failure(str(e))
            return False
        finally:
            reading.cancel()
        self._failures, self._logged = 0, None
        if document != self._document:
            self._document, self._jwks = document, jwks
            _log.info(
                "jwks_loaded",
                listener=self._listener_name,
                url=self._request.shown_url,
                keys=len(jwks.keys),
                left_out=jwks.left_out,
            )
        return True

    def close(self) -> None:
        """Let the thread end, without waiting for a server that does not answer."""
        self._executor.shutdown(wait=False)

    async def _read(self) -> tuple[bytes, Jwks]:
        return await self._executor.submit_op(lambda: _read_jwks(self._request))

    async def _wait_until_due(self) -> None:
        started_ms = self._clock.now_ms()
        if self._failures:
            await asyncio.sleep(self._backoff.wait_ms(self._failures) / 1000)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._refresh_ms / 1000):
                await self._is_wanted.wait()
            passed_ms = self._clock.now_ms() - started_ms
            await asyncio.sleep(max(0, self._interval_ms - passed_ms) / 1000)

    def _log_failure(self, reason: str) -> None:
        if reason == self._logged:
            return
        self._logged = reason
        _log.warning(
            "jwks_refresh_failed",
            listener=self._listener_name,
            reason=reason,
            keys=len(self._jwks.keys),
        )


def _read_jwks(request: UrlRequest) -> tuple[bytes, Jwks]:
    document = read_url(request)
    return document, parse_jwks(document)
