"""WIRE. ``ListenerTls``: keys and certificates of one listener, renewed when their files change.

* Files are read in a separate thread, so that a disk that hangs delays neither the event loop
  nor the exit of the process.
* The contents of files are compared, not their times, whose resolution can hide a change.
* Contents that cannot be used are reported once, and the last usable ones stay in use.
* Each new handshake uses the newest contents. Open connections keep their session.
* A node that connects to the same listener of other nodes uses the same keys for both sides.
* The keys of the stores may change while the daemon runs (KIP-226). Each check reads the values
  again, because references in them may stand for another password.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

from kraftjbod.core.config_model import secret_text
from kraftjbod.core.dynamic_listener_config import DYNAMIC_STORE_KEYS
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.ssl_principal_rules import parse_principal_rules, principal_name
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection_context import ANONYMOUS
from kraftjbod.net.tls.contexts import TlsContexts, distinguished_name, load_contexts
from kraftjbod.net.tls.stores import read_store_file
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor

T = TypeVar("T")
#: Returns the configuration of a listener. Reads files, so it runs in a thread.
ReadConfig = Callable[[], ListenerConfig]

_log = get_logger()
_DAY_MS: Final = 86_400_000
#: A certificate that expires within this time is reported, once per day.
EXPIRY_WARNING_MS: Final = 30 * _DAY_MS


class ListenerTls:
    """The keys and certificates of one listener, which can be replaced while the daemon runs.

    Created by :func:`open_tls`. ``settings`` are for accepted connections, ``client_settings`` for
    connections to the listener of that name on other nodes.
    """

    def __init__(
        self,
        config: ListenerConfig,
        name: str,
        loaded: TlsContexts,
        contents: bytes,
        *,
        executor: LogDirExecutor,
        clock: Clock,
    ) -> None:
        """:param loaded: contexts for the sides of connections that the node needs.
        :param contents: digest of the files from which ``loaded`` was created.
        """
        self._config = config
        self._name = name
        self._read_config: ReadConfig = lambda: config
        self._is_replaced = asyncio.Event()
        self._renewing = asyncio.Lock()
        self._loaded = loaded
        self._contents = contents
        self._executor = executor
        self._clock = clock
        #: When the coming expiry was last reported, in monotonic milliseconds.
        self._warned_ms: int | None = None
        #: For accepted connections.
        self.settings = TlsSettings(
            listener_name=name,
            context=self._server_context,
            principal_of=PrincipalMapper(config.ssl_principal_mapping_rules),
            handshake_timeout_ms=config.ssl_handshake_timeout_ms,
        )
        #: For connections to this listener of other nodes.
        self.client_settings = TlsSettings(
            listener_name=name,
            context=self._client_context,
            handshake_timeout_ms=config.ssl_handshake_timeout_ms,
        )

    def __repr__(self) -> str:
        return f"<ListenerTls {self._name} {self._loaded.subject}>"

    @property
    def listener_name(self) -> str:
        return self._name

    @property
    def seconds_until_expiry(self) -> float:
        """Seconds until the first of the chain's certificates to expire does so; negative
        afterwards, infinite without a certificate.
        """
        expires = self._loaded.expires
        if expires is None:
            return math.inf
        return expires.timestamp() - self._clock.wall_ms() / 1000

    async def run_renewals(self) -> None:
        """Load changed files every ``ssl.store.check.interval.ms``, and report a certificate that
        expires soon; until cancelled."""
        while True:
            self._warn_of_expiry()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.ssl_store_check_interval_ms / 1000):
                    await self._is_replaced.wait()
            await self.renew()

    def use_config(self, read_config: ReadConfig) -> None:
        """Use the stores of another configuration, soon.

        :param read_config: returns the configuration; runs in the thread. Its ConfigError is logged
            once, and the previous keys and certificates stay in use.
        """
        self._read_config = read_config
        self._is_replaced.set()

    async def check_config(self, read_config: ReadConfig) -> None:
        """Require that the stores of another configuration can be used.

        :raises ConfigError: they cannot be used.
        """
        await _in_thread(self._executor, lambda: self._load(read_config()))

    async def renew(self) -> bool:
        """Load the files if their contents or the configuration changed; return whether new
        contents came into use.

        Contents that cannot be used are logged, and the previous ones stay in use.
        """
        async with self._renewing:
            return await self._renew()

    async def _renew(self) -> bool:
        self._is_replaced.clear()
        read_config = self._read_config
        config, contents = await _in_thread(self._executor, lambda: _read(read_config))
        if contents == self._contents:
            return False
        # Set before the files are loaded: a change during the load is found by the next check.
        self._contents = contents
        try:
            if isinstance(config, ConfigError):
                raise config
            loaded = await _in_thread(self._executor, lambda: self._load(config))
        except ConfigError as e:
            _log.warning("tls_renewal_failed", listener=self._name, reason=str(e))
            return False
        self._loaded = loaded
        _log.info("tls_certificate_renewed", listener=self._name, **_described(loaded))
        self._warn_of_expiry()
        return True

    def _load(self, config: ListenerConfig) -> TlsContexts:
        serves, dials = self._loaded.server is not None, self._loaded.client is not None
        return load_contexts(config, serves=serves, dials=dials)

    def _server_context(self) -> ssl.SSLContext:
        assert self._loaded.server is not None, "the node does not serve this listener"
        return self._loaded.server

    def _client_context(self) -> ssl.SSLContext:
        assert self._loaded.client is not None, "the node opens no such connections"
        return self._loaded.client

    def _warn_of_expiry(self) -> None:
        now_ms = self._clock.now_ms()
        if self.seconds_until_expiry * 1000 > EXPIRY_WARNING_MS:
            return
        if self._warned_ms is None or now_ms - self._warned_ms >= _DAY_MS:
            self._warned_ms = now_ms
            _log.warning(
                "tls_certificate_expires_soon", listener=self._name, **_described(self._loaded)
            )


async def open_tls(
    config: ListenerConfig,
    name: str,
    *,
    executor: LogDirExecutor,
    clock: Clock,
    serves: bool = True,
    dials: bool = False,
) -> ListenerTls:
    """Load keys and certificates of a listener, in the thread of ``executor``.

    :param name: upper-case name of the listener.
    :param serves: whether this node serves the listener.
    :param dials: whether this node connects to this listener of other nodes.
    :raises ConfigError: naming the listener, and what cannot be used.
    """
    try:
        contents = await _in_thread(executor, lambda: _digest(config))
        loaded = await _in_thread(
            executor, lambda: load_contexts(config, serves=serves, dials=dials)
        )
    except ConfigError as e:
        raise ConfigError(f"listener {name}: {e}") from e
    _log.info("tls_certificate_loaded", listener=name, **_described(loaded))
    return ListenerTls(config, name, loaded, contents, executor=executor, clock=clock)


async def _in_thread(executor: LogDirExecutor, work: Callable[[], T]) -> T:
    done: asyncio.Future[T] = executor.submit_op(work)
    return await done


def _described(loaded: TlsContexts) -> dict[str, str]:
    expires = "" if loaded.expires is None else loaded.expires.isoformat()
    return {"subject": loaded.subject, "expires": expires}


def _read(read_config: ReadConfig) -> tuple[ListenerConfig | ConfigError, bytes]:
    """Return the configuration with :func:`_digest` of it, or why it cannot be read, with a digest
    of that."""
    try:
        config = read_config()
    except ConfigError as e:
        return e, hashlib.sha256(str(e).encode()).digest()
    return config, _digest(config)


def _digest(config: ListenerConfig) -> bytes:
    """Return a digest of the values and contents of keystore and truststore, or of why they are
    unreadable."""
    digest = hashlib.sha256()
    values = config.by_key()
    for key in sorted(DYNAMIC_STORE_KEYS):
        digest.update(hashlib.sha256(secret_text(values[key]).encode()).digest())
    for path in (config.ssl_keystore_location, config.ssl_truststore_location):
        if path is None:
            continue
        try:
            part = read_store_file(path, path)
        except ConfigError as e:
            part = str(e).encode()
        digest.update(hashlib.sha256(part).digest())
    return digest.digest()


class PrincipalMapper:
    """Maps a client's certificate to a principal, such as ``User:CN=alice``."""

    def __init__(self, rules: str) -> None:
        """:param rules: ``ssl.principal.mapping.rules``, which were checked."""
        self._rules = parse_principal_rules(rules)

    def __call__(self, certificate: bytes | None) -> str:
        """Return the principal of a client with the DER ``certificate``, None without one.

        :raises ValueError: the certificate is malformed, or no rule matches the name in it.
        """
        if certificate is None:
            return ANONYMOUS
        return f"User:{principal_name(self._rules, distinguished_name(certificate))}"
