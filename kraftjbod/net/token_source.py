"""WIRE. ``TokenSource``: the tokens with which a tool logs in by OAUTHBEARER.

* A token comes from an identity provider, by the client credentials grant (RFC 6749, section 4.4),
  or from a file, which another program keeps fresh.
* A token of a provider is used again until four fifths of its lifetime have passed, as in Kafka's
  clients.
* No message contains a token or the secret.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.net.url_document import UrlRequest, read_url

_MAX_ANSWER_BYTES: Final = 128 * 1024
_TIMEOUT_S: Final = 10.0
_RENEWAL_SHARE: Final = 0.8
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+")


@dataclass(slots=True, kw_only=True)
class TokenSource:
    """Address of tokens, and the client's credentials. Its representation shows no secret."""

    url: str
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    now_s: Callable[[], float] = field(default=time.time, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _token: str = field(default="", repr=False)
    _renewal_s: float = 0.0

    def token(self) -> tuple[str, float]:
        """Return a token and its expiry in wall-clock seconds. Blocks.

        :raises ConnectionLostError: the file or the identity provider cannot be read.
        :raises RemoteProtocolError: the answer has no token with an expiry.
        """
        with self._lock:
            if self.now_s() >= self._renewal_s:
                self._renew()
            return self._token, _expiry_s(self._token, self.url)

    def _renew(self) -> None:
        now_s = self.now_s()
        is_file = self.url.startswith("file:")
        token = _of_file(self.url) if is_file else self._of_provider()
        expires_s = _expiry_s(token, self.url)
        # Another program may replace a file at any time.
        self._renewal_s = now_s if is_file else now_s + _RENEWAL_SHARE * (expires_s - now_s)
        self._token = token

    def _of_provider(self) -> str:
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        credentials = base64.b64encode(f"{self.client_id}:{self.client_secret}".encode()).decode()
        request = UrlRequest(
            url=self.url,
            max_bytes=_MAX_ANSWER_BYTES,
            timeout_s=_TIMEOUT_S,
            body=urllib.parse.urlencode(form).encode(),
            headers={
                "Authorization": f"Basic {credentials}",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        answer = _json_object(read_url(request))
        token = answer.get("access_token")
        if not isinstance(token, str) or not token:
            raise RemoteProtocolError(
                f"{request.shown_url} answered without access_token: check the address of the "
                "token endpoint"
            )
        return token


def _of_file(url: str) -> str:
    document = read_url(UrlRequest(url=url, max_bytes=_MAX_ANSWER_BYTES, timeout_s=_TIMEOUT_S))
    return document.decode(errors="replace").strip()


def _expiry_s(token: str, url: str) -> float:
    """Return the claim ``exp`` of a token, whose signature only the broker verifies."""
    parts = _TOKEN.fullmatch(token)
    encoded = "" if parts is None else parts[1]
    try:
        payload = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        payload = b""
    expires_s = _json_object(payload).get("exp")
    if isinstance(expires_s, bool) or not isinstance(expires_s, int | float):
        raise RemoteProtocolError(
            f"the token of {url.partition('?')[0]} is not a JSON web token with an expiry (exp)"
        )
    return float(expires_s)


def _json_object(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
