"""Keystores and truststores: Kafka's combinations, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import PrivateFormat

from kraftjbod.core.config_model import parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ssl_config import SslConfig
from kraftjbod.net.tls.stores import MAX_STORE_BYTES, load_keystore, load_truststore
from tests.certificates import Authority

AUTHORITY = Authority()
IDENTITY = AUTHORITY.issue()
KEY = IDENTITY.key_pem().decode()
CHAIN = (IDENTITY.certificate_pem + AUTHORITY.pem).decode()
PEM = {"ssl_keystore_type": "PEM"}


def ssl_config(**values: object) -> SslConfig:
    given = {key.replace("_", "."): str(value) for key, value in values.items()}
    return parse_model(SslConfig, given, "test")


def test_pem_file_with_text_between_blocks_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    path.write_text(f"\nBag Attributes\n  name: x\n{CHAIN}\nother\n{KEY}".replace("\n", "\r\n"))
    material = load_keystore(ssl_config(**PEM, ssl_keystore_location=path))
    assert material.chain == [IDENTITY.certificate, AUTHORITY.certificate]
    assert material.pem().startswith(b"-----BEGIN PRIVATE KEY-----")


@pytest.mark.parametrize("password", [None, "secret"])
def test_pem_in_the_configuration_is_loaded(password: str | None) -> None:
    config = ssl_config(
        **PEM,
        **({} if password is None else {"ssl_key_password": password}),
        ssl_keystore_key=IDENTITY.key_pem(password).decode(),
        ssl_keystore_certificate_chain=CHAIN,
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=AUTHORITY.pem.decode(),
    )
    assert len(load_keystore(config).chain) == 2
    assert load_truststore(config) == [AUTHORITY.certificate]


def test_unencrypted_key_is_loaded_although_a_key_password_is_set(tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    old_form = IDENTITY.key_pem(form=PrivateFormat.TraditionalOpenSSL)
    path.write_bytes(old_form + IDENTITY.certificate_pem)
    config = ssl_config(**PEM, ssl_keystore_location=path, ssl_key_password="unused")
    assert load_keystore(config).chain == [IDENTITY.certificate]


@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_pkcs12_files_are_loaded_under_both_types(tmp_path: Path, kind: str) -> None:
    """Java's keytool writes PKCS#12, and Kafka's default type is JKS."""
    config = ssl_config(
        ssl_keystore_type=kind,
        ssl_keystore_location=IDENTITY.write_pkcs12(tmp_path / "k.p12", "pass"),
        ssl_keystore_password="pass",
        ssl_truststore_type=kind,
        ssl_truststore_location=AUTHORITY.write_pkcs12(tmp_path / "t.p12", "trust"),
        ssl_truststore_password="trust",
    )
    assert load_keystore(config).chain == [IDENTITY.certificate, AUTHORITY.certificate]
    assert load_truststore(config) == [AUTHORITY.certificate]


@pytest.mark.parametrize(
    ("content", "values", "problem"),
    [
        (None, {}, "ssl.keystore.location is not set"),
        (None, {"ssl_keystore_key": KEY}, "needs ssl.keystore.type=PEM"),
        (None, PEM | {"ssl_keystore_key": KEY}, "belong together: set both"),
        (b"x", PEM, "it is no PEM file"),
        (KEY.encode(), PEM, "no certificate that can be read"),
        (CHAIN.encode(), PEM, "has no private key"),
        (KEY.encode(), PEM | {"ssl_keystore_password": "x"}, "is ssl.key.password"),
        (IDENTITY.key_pem("a"), PEM, "encrypted key: set ssl.key.password"),
        (IDENTITY.key_pem("a"), PEM | {"ssl_key_password": "b"}, "is ssl.key.password right?"),
        (b"\xfe\xed\xfe\xed", {}, "keytool -importkeystore -srckeystore"),
        (KEY.encode(), {}, "set ssl.keystore.type=PEM"),
        (b"0123", {}, "needs ssl.keystore.password"),
        (b"0123", {"ssl_keystore_password": "x"}, "no PKCS12 file of this ssl.keystore.password"),
        (b"0", {"ssl_keystore_password": "x", "ssl_key_password": "y"}, "has one password"),
        (b"x" * (MAX_STORE_BYTES + 1), {}, "has more than"),
    ],
)
def test_unusable_keystore_error_names_the_problem_without_the_key(
    tmp_path: Path, content: bytes | None, values: dict[str, str], problem: str
) -> None:
    if content is not None:
        (tmp_path / "k").write_bytes(content)
        values = values | {"ssl_keystore_location": str(tmp_path / "k")}
    with pytest.raises(ConfigError) as caught:
        load_keystore(ssl_config(**values))
    assert problem in str(caught.value)
    assert "PRIVATE KEY-----\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "values", "problem"),
    [
        (None, {"ssl_truststore_certificates": "x"}, "needs ssl.truststore.type=PEM"),
        (None, {"ssl_truststore_password": "x"}, "without ssl.truststore.location"),
        (b"\xfe\xed\xfe\xed", {}, "then set ssl.truststore.location="),
        (b"0123", {"ssl_truststore_password": "x"}, "no PKCS12 file"),
        (KEY.encode(), {"ssl_truststore_type": "PEM"}, "no certificate that can be read"),
    ],
)
def test_unusable_truststore_error_names_the_problem(
    tmp_path: Path, content: bytes | None, values: dict[str, str], problem: str
) -> None:
    if content is not None:
        (tmp_path / "t").write_bytes(content)
        values = values | {"ssl_truststore_location": str(tmp_path / "t")}
    with pytest.raises(ConfigError) as caught:
        load_truststore(ssl_config(**values))
    assert problem in str(caught.value)


def test_missing_keystore_file_is_named_and_an_unset_truststore_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "missing.pem"
    with pytest.raises(ConfigError, match=r"missing\.pem cannot be read: No such file"):
        load_keystore(ssl_config(**PEM, ssl_keystore_location=path))
    assert load_truststore(ssl_config()) == ()


def test_pkcs12_truststore_is_no_keystore(tmp_path: Path) -> None:
    path = AUTHORITY.write_pkcs12(tmp_path / "t.p12", "x")
    with pytest.raises(ConfigError, match="it may be a truststore"):
        load_keystore(ssl_config(ssl_keystore_location=path, ssl_keystore_password="x"))
