"""WIRE. ``read_url``: a small document from ``file://``, ``http://`` or ``https://``, with limits.

* It blocks, so that daemons call it in a thread of its own.
* Redirections are errors, because a document of another host would not be the configured one.
* Certificates are verified by the authorities of the system. ``SSL_CERT_FILE`` names others.
* Proxies of the environment are not used.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from kraftjbod.core.errors import ConnectionLostError

_CHUNK_BYTES: Final = 16 * 1024
_MAX_SHOWN_CHARS: Final = 300
_USER_AGENT: Final = "kraftjbod"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlRequest:
    """A document to read. Its representation shows neither headers nor body, which have secrets."""

    url: str
    max_bytes: int
    timeout_s: float
    """Time limit of each step, and of the whole body."""
    body: bytes | None = field(default=None, repr=False)
    """Body of a POST request; None: a GET request."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may have secrets."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()


def read_url(request: UrlRequest) -> bytes:
    """Return the document. Blocks.

    :raises ConnectionLostError: the document cannot be read, is too large or takes too long, or
        the response has another status than 200.
    """
    parts = urlsplit(request.url)
    try:
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as file:
                return _limited(file.read(request.max_bytes + 1), request)
        return _over_http(parts, request)
    except OSError as e:
        reason = "no answer in time" if isinstance(e, TimeoutError) else e.strerror or str(e)
        raise ConnectionLostError(f"{request.shown_url} cannot be read: {reason}") from e
    except (http.client.HTTPException, ValueError) as e:
        raise ConnectionLostError(
            f"{request.shown_url} cannot be read: the response is not HTTP ({type(e).__name__})"
        ) from e


def _over_http(parts: SplitResult, request: UrlRequest) -> bytes:
    ends_s = time.monotonic() + request.timeout_s
    host = parts.hostname or ""
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, parts.port, timeout=request.timeout_s, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, parts.port, timeout=request.timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {"Accept": "application/json", "User-Agent": _USER_AGENT, "Connection": "close"}
    with closing(connection):
        connection.connect()
        sock = connection.sock
        connection.request(
            "GET" if request.body is None else "POST",
            target,
            body=request.body,
            headers={**headers, **request.headers},
        )
        with closing(connection.getresponse()) as response:
            found = _body_of(response, sock, ends_s, request.max_bytes)
    if response.status != http.client.OK:
        hint = _shown_error(found) if request.body is not None else ""
        raise ConnectionLostError(
            f"{request.shown_url} cannot be read: status {response.status}, expected 200{hint}"
        )
    return _limited(found, request)


def _body_of(
    response: http.client.HTTPResponse, sock: socket.socket, ends_s: float, max_bytes: int
) -> bytes:
    """Return the body, or the first ``max_bytes`` and more of a longer one.

    :param ends_s: monotonic time at which the whole body has to be there.
    :raises TimeoutError: the body takes longer.
    """
    found = b""
    while len(found) <= max_bytes:
        remaining_s = ends_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        # The response closes the socket after its last byte.
        if not response.isclosed():
            sock.settimeout(remaining_s)
        chunk = response.read1(_CHUNK_BYTES)
        if not chunk:
            if response.length:
                raise http.client.IncompleteRead(found)
            break
        found += chunk
    return found


def _shown_error(body: bytes) -> str:
    """Return the beginning of an error response (RFC 6749, section 5.2), which has no token."""
    text = body.decode(errors="replace").strip()
    return f": {text[:_MAX_SHOWN_CHARS]!r}" if text else ""


def _limited(found: bytes, request: UrlRequest) -> bytes:
    if len(found) > request.max_bytes:
        raise ConnectionLostError(
            f"{request.shown_url} cannot be read: it has more than {request.max_bytes} bytes"
        )
    return found
