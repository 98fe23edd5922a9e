"""WIRE. ``open_tls``: the TLS settings of one listener of a broker."""

from __future__ import annotations

import asyncio

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.core.ssl_principal_rules import parse_principal_rules, principal_name
from kraftjbod.core.telemetry import get_logger
from kraftjbod.daemon.tls.contexts import TlsContext, distinguished_name, load_context
from kraftjbod.net.connection_context import ANONYMOUS
from kraftjbod.net.tls_transport import TlsSettings

_log = get_logger()


async def open_tls(config: ListenerConfig, name: str) -> TlsSettings:
    """Load keys and certificates of a listener, in a thread of the event loop's executor.

    :param name: upper-case name of the listener.
    :raises ConfigError: naming the listener, and what cannot be used.
    """
    loop = asyncio.get_running_loop()
    try:
        loaded = await loop.run_in_executor(None, load_context, config)
    except ConfigError as e:
        raise ConfigError(f"listener {name}: {e}") from e
    _report(loaded, name)
    return TlsSettings(
        listener_name=name,
        context=lambda: loaded.context,
        principal_of=PrincipalMapper(config.ssl_principal_mapping_rules),
        handshake_timeout_ms=config.ssl_handshake_timeout_ms,
    )


def _report(loaded: TlsContext, name: str) -> None:
    _log.info(
        "tls_certificate_loaded",
        listener=name,
        subject=loaded.subject,
        expires=loaded.expires.isoformat(),
    )


class PrincipalMapper:
    """Maps a client's certificate to a principal, such as ``User:CN=alice``."""

    def __init__(self, rules: str) -> None:
        """:param rules: ``ssl.principal.mapping.rules``, which were checked."""
        self._rules = parse_principal_rules(rules)

    def __call__(self, certificate: bytes | None) -> str:
        """Return the principal of a client with the DER ``certificate``, None without one.

        :raises ValueError: no rule matches the name in the certificate.
        """
        if certificate is None:
            return ANONYMOUS
        return f"User:{principal_name(self._rules, distinguished_name(certificate))}"
