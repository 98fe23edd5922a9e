"""An identity provider on the loopback address: signs tokens and serves its keys and tokens."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

ISSUER: Final = "https://identity.example.com"
AUDIENCE: Final = "kraftjbod"
CLIENT_ID: Final = "robot"
CLIENT_SECRET: Final = "canary-client-secret"


class IdentityProvider:
    """Keys by id, and the tokens that the newest key signs."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {}
        self._algorithms: dict[str, str] = {}
        self.is_away = False
        #: Numbers of requests by path.
        self.requests: dict[str, int] = {}
        self.lifetime_s = 300
        self.rotate("first")

    def rotate(self, key_id: str, algorithm: str = "ES256") -> None:
        """Sign with another key from now on. The document contains only this one."""
        self.keys = {key_id: make_key(key_id, algorithm)}
        self._algorithms[key_id] = algorithm

    def jwks(self) -> bytes:
        keys = [key.as_dict(private=False) for key in self.keys.values()]
        return json.dumps({"keys": keys}).encode()

    def token(self, user: str = "alice", **changed: Any) -> str:
        """Return a token of ``user``.

        :param changed: claims to change; None removes a claim.
        """
        now_s = int(time.time())
        claims = {
            "sub": user,
            "iss": ISSUER,
            "aud": [AUDIENCE, "other"],
            "iat": now_s,
            "exp": now_s + self.lifetime_s,
            "scope": "produce consume",
            **changed,
        }
        given = {name: value for name, value in claims.items() if value is not None}
        return self.sign(given)

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        (key_id, key) = [*self.keys.items()][-1]
        algorithm = self._algorithms[key_id]
        values = {"alg": algorithm, "kid": key_id, **header}
        given = {name: value for name, value in values.items() if value is not None}
        return jwt.encode(given, claims, key, algorithms=[algorithm])

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve ``/jwks`` and ``/token`` in a thread; the context's value is the base URL."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(provider.jwks() if self.path == "/jwks" else None)

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                form = urllib.parse.parse_qs(self.rfile.read(length).decode())
                self._answer(provider.issue(form, self.headers.get("Authorization", "")))

            def _answer(self, body: bytes | None) -> None:
                count = provider.requests
                count[self.path] = count.get(self.path, 0) + 1
                if provider.is_away:
                    self.send_error(503)
                    return
                if body is None:
                    body = b'{"error":"invalid_client"}'
                    self.send_response(401)
                else:
                    self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def issue(self, form: dict[str, list[str]], authorization: str) -> bytes | None:
        """Return the answer to a request for a token by client credentials; None if it is
        refused."""
        import base64

        credentials = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        in_form = (form.get("client_id"), form.get("client_secret"))
        is_known = authorization == f"Basic {credentials}" or in_form == (
            [CLIENT_ID],
            [CLIENT_SECRET],
        )
        if not is_known or form.get("grant_type") != ["client_credentials"]:
            return None
        return json.dumps(
            {
                "access_token": self.token(CLIENT_ID),
                "token_type": "Bearer",
                "expires_in": self.lifetime_s,
            }
        ).encode()


def make_key(key_id: str, algorithm: str) -> Key:
    """Return a new private key for signatures by ``algorithm``."""
    parameters: Any = {"kid": key_id, "alg": algorithm, "use": "sig"}
    if algorithm.startswith("ES"):
        curve: Any = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm]
        return ECKey.generate_key(curve, parameters, private=True)
    return RSAKey.generate_key(2048, parameters, private=True)
