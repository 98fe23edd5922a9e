"""Certificates of ``CertificateAuthority`` are accepted by OpenSSL, in memory."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.local.certificate_authority import CertificateAuthority


def _handshake(server_pem: Path, trusted: bytes, host: str) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_pem)
    client = ssl.create_default_context(cadata=trusted.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (client_side, server_side, client_side, server_side):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert client_side.version() == server_side.version() == "TLSv1.3"


def test_issued_certificate_is_valid_for_its_hosts_only(tmp_path: Path) -> None:
    authority = CertificateAuthority.create("ca")
    path = tmp_path / "node.pem"
    path.write_bytes(authority.issue("broker-1", ("broker-1.example.com", "10.0.0.1")))
    for host in ("broker-1.example.com", "10.0.0.1"):
        _handshake(path, authority.certificate_pem, host)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"10\.0\.0\.2"):
        _handshake(path, authority.certificate_pem, "10.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(path, CertificateAuthority.create("ca").certificate_pem, "10.0.0.1")


def test_loaded_authority_issues_certificates_of_the_created_one(tmp_path: Path) -> None:
    made = CertificateAuthority.create("ca")
    loaded = CertificateAuthority.load(made.key_pem, made.certificate_pem, "ca-key.pem")
    path = tmp_path / "node.pem"
    path.write_bytes(loaded.issue("broker-1", ("127.0.0.1",)))
    _handshake(path, made.certificate_pem, "127.0.0.1")


def test_load_rejects_malformed_key_with_its_path() -> None:
    made = CertificateAuthority.create("ca")
    with pytest.raises(StartupError, match=r"/x/ca-key\.pem: key or certificate"):
        CertificateAuthority.load(b"no key", made.certificate_pem, "/x/ca-key.pem")
