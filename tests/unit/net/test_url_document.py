"""Documents of real servers and files, and each reason why one cannot be read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kraftjbod.core.errors import ConnectionLostError
from kraftjbod.net.url_document import UrlRequest, read_url


@contextmanager
def serving(*parts: bytes, hangs: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one connection: read a request and send ``parts``; the value is URL and requests."""
    received: list[bytes] = []
    is_over = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            received.append(connection.recv(65_536))
            for part in parts:
                connection.sendall(part)
            if hangs:
                is_over.wait()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}", received
    finally:
        is_over.set()
        thread.join()
        server.close()


def request(url: str, **changed: object) -> UrlRequest:
    values: dict[str, object] = {"url": url, "max_bytes": 100, "timeout_s": 30.0, **changed}
    return UrlRequest(**values)  # type: ignore[arg-type]


def test_read_url_returns_the_body_of_a_response_with_and_without_length() -> None:
    for head in (b"Content-Length: 5\r\n", b""):
        with serving(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n", b"he", b"llo") as (url, received):
            assert read_url(request(f"{url}/jwks?tenant=7")) == b"hello"
        assert received[0].startswith(b"GET /jwks?tenant=7 HTTP/1.1\r\n")


def test_read_url_sends_the_body_and_headers_of_a_post() -> None:
    with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (url, received):
        sent = request(url, body=b"a=1", headers={"Authorization": "Basic canary"})
        assert read_url(sent) == b"ok"
    assert received[0].startswith(b"POST / HTTP/1.1\r\n")
    assert b"Authorization: Basic canary\r\n" in received[0]
    assert "canary" not in repr(sent) and "a=1" not in repr(sent)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
            "status 302, expected 200",
        ),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 6\r\n\r\nsecret", "status 503, expected 200"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, "more than 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", "cannot be read"),
        (b"no http at all\r\n\r\n", "the response is not HTTP"),
        (b"", "cannot be read"),
    ],
)
def test_read_url_refuses_other_responses(answer: bytes, reason: str) -> None:
    with (
        serving(answer) as (url, _),
        pytest.raises(ConnectionLostError, match=reason) as caught,
    ):
        read_url(request(f"{url}/jwks?key=canary"))
    assert "canary" not in str(caught.value) and "secret" not in str(caught.value)


def test_read_url_quotes_the_error_of_a_refused_post() -> None:
    answer = b'HTTP/1.1 401 No\r\nContent-Length: 26\r\n\r\n{"error":"invalid_client"}'
    with serving(answer) as (url, _), pytest.raises(ConnectionLostError, match="invalid_client"):
        read_url(request(url, body=b""))


@pytest.mark.parametrize("parts", [(), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",)])
def test_read_url_gives_up_when_the_server_hangs(parts: tuple[bytes, ...]) -> None:
    with (
        serving(*parts, hangs=True) as (url, _),
        pytest.raises(ConnectionLostError, match="no answer in time"),
    ):
        read_url(request(url, timeout_s=0.1))


def test_read_url_fails_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionLostError, match="Connection refused"):
        read_url(request(f"http://127.0.0.1:{port}/"))
    with pytest.raises(ConnectionLostError, match="cannot be read"):
        read_url(request("http://host.invalid/"))


def test_read_url_verifies_the_certificate_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssl

    from tests.certificates import Authority

    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("identity").write_pem(tmp_path / "k.pem"))
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(2):
            connection, _ = server.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as tls:
                    tls.recv(65_536)
                    tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"https://127.0.0.1:{server.getsockname()[1]}/"
    with pytest.raises(ConnectionLostError, match=r"(?i)certificate"):
        read_url(request(url))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write_pem(tmp_path / "ca.pem")))
    assert read_url(request(url)) == b"ok"
    thread.join()
    server.close()


def test_read_url_reads_a_file_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a b.json"
    path.write_bytes(b"x" * 100)
    assert read_url(request(f"file://{tmp_path}/a%20b.json")) == b"x" * 100
    path.write_bytes(b"x" * 101)
    with pytest.raises(ConnectionLostError, match="more than 100 bytes"):
        read_url(request(f"file://{tmp_path}/a%20b.json"))
    with pytest.raises(ConnectionLostError, match="No such file"):
        read_url(request(f"file://{tmp_path}/missing"))
