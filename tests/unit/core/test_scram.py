"""Keys of SCRAM, by the example of RFC 7677."""

from __future__ import annotations

import base64

from kraftjbod.core.scram import (
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    fake_credential,
    salt_of,
)

SHA_256 = ScramMechanism.SCRAM_SHA_256


def test_scram_keys_are_those_of_the_example_in_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = SHA_256.salted_password("pencil", salt, 4096)
    credential = ScramCredential.from_salted_password(SHA_256, salted, salt=salt, iterations=4096)
    exchange = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = SHA_256.hmac(credential.stored_key, exchange)
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert SHA_256.hash(client_key) == credential.stored_key
    verifier = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert SHA_256.hmac(credential.server_key, exchange) == verifier


def test_scram_mechanisms_have_kafkas_names_and_hashes() -> None:
    found = [(one.value, one.mechanism_name, one.hash_name) for one in ScramMechanism]
    assert found == [(1, "SCRAM-SHA-256", "sha256"), (2, "SCRAM-SHA-512", "sha512")]


def test_scram_credential_repr_shows_no_key() -> None:
    salted = SHA_256.salted_password("pencil", b"salt", 4096)
    made = ScramCredential.from_salted_password(SHA_256, salted, salt=b"salt", iterations=4096)
    assert repr(made) == "ScramCredential(iterations=4096)"


def test_salt_has_the_form_of_kafkas_tools() -> None:
    assert len(salt_of(b"\xff" * 17)) == 26
    assert salt_of(bytes(17)) == b"0"
    assert int(salt_of(b"\x01" * 17), 36) == int.from_bytes(b"\x01" * 17) & ((1 << 130) - 1)


def test_fake_credential_is_stable_per_user_cluster_and_mechanism() -> None:
    made = fake_credential(SHA_256, "eve", b"secret")
    assert made == fake_credential(SHA_256, "eve", b"secret")
    assert made.iterations == MIN_ITERATIONS
    others = [
        fake_credential(SHA_256, "eva", b"secret"),
        fake_credential(SHA_256, "eve", b"other"),
        fake_credential(ScramMechanism.SCRAM_SHA_512, "eve", b"secret"),
    ]
    assert made.salt not in {one.salt for one in others}
