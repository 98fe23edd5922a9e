"""Contexts of listeners: versions, ciphers, client authentication, names in certificates."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ssl_config import SslConfig
from kraftjbod.net.tls.contexts import distinguished_name, load_contexts, openssl_name
from tests.certificates import Authority

AUTHORITY = Authority()
NEWEST = "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256"


def ssl_config(directory: Path, **values: str) -> SslConfig:
    given = {key.replace("_", "."): value for key, value in values.items()}
    keystore = str(AUTHORITY.issue().write_pem(directory / "k.pem"))
    pem = {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore}
    return parse_model(SslConfig, {**pem, **given}, "test")


@pytest.mark.parametrize(
    ("values", "versions"),
    [
        ({}, ("TLSv1_2", "TLSv1_3")),
        ({"ssl_enabled_protocols": "TLSv1.3"}, ("TLSv1_3", "TLSv1_3")),
        ({"ssl_enabled_protocols": "TLSv1.2"}, ("TLSv1_2", "TLSv1_2")),
        ({"ssl_cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, ("TLSv1_2",) * 2),
        ({"ssl_cipher_suites": NEWEST}, ("TLSv1_3", "TLSv1_3")),
        ({"ssl_cipher_suites": f"{NEWEST},ECDHE-RSA-AES128-GCM-SHA256"}, ("TLSv1_2", "TLSv1_3")),
    ],
)
def test_tls_context_serves_only_versions_that_have_a_suite(
    tmp_path: Path, values: dict[str, str], versions: tuple[str, str]
) -> None:
    loaded = load_contexts(ssl_config(tmp_path, **values), serves=True, dials=False)
    context = loaded.server
    assert context is not None
    assert loaded.client is None
    assert (context.minimum_version.name, context.maximum_version.name) == versions
    assert context.verify_mode == ssl.CERT_NONE
    assert loaded.subject == "CN=localhost"
    assert loaded.expires is not None


def test_tls_context_serves_only_authenticated_encryption_with_forward_secrecy(
    tmp_path: Path,
) -> None:
    """Scanners report the suites with CBC that OpenSSL accepts by default."""
    context = load_contexts(ssl_config(tmp_path), serves=True, dials=False).server
    assert context is not None
    suites = context.get_ciphers()
    assert all(suite["aead"] for suite in suites)
    assert {suite["kea"] for suite in suites} == {"kx-any", "kx-ecdhe"}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ssl_client_auth": "required"}, "needs ssl.truststore.location"),
        ({"ssl_cipher_suites": "TLS_AES_256_GCM_SHA384"}, "all suites of TLS 1.3"),
        ({"ssl_cipher_suites": "TLS_NULL_WITH_NOTHING"}, "OpenSSL does not have"),
        (
            {"ssl_cipher_suites": NEWEST, "ssl_enabled_protocols": "TLSv1.2"},
            "no suite of the versions",
        ),
    ],
)
def test_load_contexts_with_unusable_settings_raises_config_error_with_reason(
    tmp_path: Path, values: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_contexts(ssl_config(tmp_path, **values), serves=True, dials=False)
    assert problem in str(caught.value)


def test_certificate_of_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mixed.pem"
    path.write_bytes(AUTHORITY.issue().key_pem() + AUTHORITY.issue().certificate_pem)
    with pytest.raises(ConfigError, match="does not belong to its private key"):
        load_contexts(
            ssl_config(tmp_path, ssl_keystore_location=str(path)), serves=True, dials=False
        )


@pytest.mark.parametrize(
    ("auth", "mode"), [("required", ssl.CERT_REQUIRED), ("requested", ssl.CERT_OPTIONAL)]
)
def test_client_authentication_verifies_by_the_truststore(
    tmp_path: Path, auth: str, mode: ssl.VerifyMode
) -> None:
    config = ssl_config(
        tmp_path,
        ssl_client_auth=auth,
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=AUTHORITY.pem.decode(),
    )
    context = load_contexts(config, serves=True, dials=False).server
    assert context is not None
    assert context.verify_mode == mode
    assert len(context.get_ca_certs()) == 1


@pytest.mark.parametrize(("algorithm", "is_checked"), [("HTTPS", True), ("", False)])
def test_client_context_checks_host_names_by_the_algorithm(
    tmp_path: Path, algorithm: str, is_checked: bool
) -> None:
    config = ssl_config(
        tmp_path,
        ssl_endpoint_identification_algorithm=algorithm,
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=AUTHORITY.pem.decode(),
    )
    loaded = load_contexts(config, serves=False, dials=True)
    assert loaded.server is None
    assert loaded.client is not None
    assert loaded.client.check_hostname is is_checked
    assert loaded.client.verify_mode == ssl.CERT_REQUIRED
    assert loaded.subject == "CN=localhost"


def test_client_context_needs_a_truststore_but_no_keystore(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"connections with TLS need ssl\.truststore"):
        load_contexts(ssl_config(tmp_path), serves=False, dials=True)
    values = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.pem.decode(),
    }
    loaded = load_contexts(parse_model(SslConfig, values, "test"), serves=False, dials=True)
    assert (loaded.subject, loaded.expires) == ("", None)


def test_damaged_certificate_is_a_configuration_error(tmp_path: Path) -> None:
    """Of the changes of single bytes, some are noticed only when a part of it is used."""
    identity = AUTHORITY.issue()
    intact = identity.certificate.public_bytes(Encoding.DER)
    trusted = AUTHORITY.certificate.public_bytes(Encoding.DER)
    keystore, truststore = tmp_path / "k.pem", tmp_path / "t.pem"
    config = ssl_config(
        tmp_path,
        ssl_keystore_location=str(keystore),
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(truststore),
    )
    refused = 0
    for place in range(len(trusted)):
        own, other = bytearray(intact), bytearray(trusted)
        own[min(place, len(own) - 1)] ^= 0x21
        other[place] ^= 0x21
        for written, anchors in ((own, trusted), (intact, other)):
            keystore.write_bytes(identity.key_pem() + ssl.DER_cert_to_PEM_cert(written).encode())
            truststore.write_text(ssl.DER_cert_to_PEM_cert(bytes(anchors)))
            try:
                load_contexts(config, serves=True, dials=True)
            except ConfigError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("iana", "name"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_RSA_WITH_AES_256_CBC_SHA256", "AES256-SHA256"),
        ("TLS_DHE_RSA_WITH_AES_256_GCM_SHA384", "DHE-RSA-AES256-GCM-SHA384"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
    ],
)
def test_iana_names_of_suites_become_those_of_openssl(iana: str, name: str) -> None:
    assert openssl_name(iana) == name


def test_distinguished_name_is_rfc_2253_text_as_in_java() -> None:
    """Java writes attributes without a keyword as the DER value."""
    oid = x509.NameOID
    name = x509.Name(
        [
            x509.NameAttribute(oid.COUNTRY_NAME, "DE"),
            x509.NameAttribute(oid.ORGANIZATION_NAME, "A, B"),
            x509.NameAttribute(oid.COMMON_NAME, "alice"),
            x509.NameAttribute(oid.EMAIL_ADDRESS, "a@b"),
        ]
    )
    key = ec.generate_private_key(ec.SECP256R1())
    issued = AUTHORITY.issue().certificate
    der = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(issued.not_valid_before_utc)
        .not_valid_after(issued.not_valid_after_utc)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    assert distinguished_name(der) == r"1.2.840.113549.1.9.1=#1603614062,CN=alice,O=A\, B,C=DE"
