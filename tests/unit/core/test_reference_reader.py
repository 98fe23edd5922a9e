"""The files and environment variables of references in configurations."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kraftjbod.core.config_references import Provider, ProviderKind, references_in
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.reference_reader import (
    MAX_FILE_BYTES,
    NO_REFERENCES,
    DynamicReferences,
    ReferenceReader,
)

KINDS = {kind.value: Provider(kind=kind) for kind in ProviderKind}
CANARY = "canary-text"


@pytest.fixture
def reader(tmp_path: Path) -> ReferenceReader:
    (tmp_path / "secrets.properties").write_text(f"password={CANARY}\nother=\\u20ac\n")
    (tmp_path / "password").write_text(f"{CANARY}\n")
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "key").write_text(CANARY)
    for path in (tmp_path / "secrets.properties", tmp_path / "credentials" / "key"):
        path.chmod(0o600)
    (tmp_path / "password").chmod(0o644)
    variables = {"NAME": CANARY, "CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}
    return ReferenceReader(variables, str(tmp_path))


def read(reader: ReferenceReader, text: str, provider: Provider | None = None) -> str:
    (reference,) = references_in(text)
    return reader.read_reference(provider or KINDS[reference.provider], reference)


def test_each_kind_of_reference_is_read(reader: ReferenceReader, tmp_path: Path) -> None:
    assert read(reader, f"${{file:{tmp_path}/secrets.properties:password}}") == CANARY
    assert read(reader, "${file:secrets.properties:other}") == "€"
    assert read(reader, f"${{dir:{tmp_path}:password}}") == CANARY
    assert read(reader, "${env:NAME}") == CANARY
    assert read(reader, "${cred:key}") == CANARY
    assert reader.open_files == {str(tmp_path / "password")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${file:secrets.properties:missing}", "secrets.properties does not have this key"),
        ("${file:none.properties:a}", "none.properties cannot be read: No such file"),
        ("${file:password}", "write the path of a properties file"),
        ("${dir:.:none}", "none cannot be read: No such file"),
        ("${dir:.:credentials}", "credentials cannot be read: Is a directory"),
        ("${dir:.:pipe}", "pipe is no file"),
        ("${dir:.:large}", f"large has more than {MAX_FILE_BYTES} bytes"),
        ("${dir:.:latin}", "latin is not UTF-8"),
        ("${dir:password}", "write the path of a directory"),
        ("${dir:.:a/b}", "has to be the name of a file"),
        ("${cred:..}", "has to be the name of a file"),
        ("${cred:a:key}", "a credential has a name and no path"),
        ("${env:a:NAME}", "an environment variable has a name and no path"),
        ("${env:OTHER}", "does not have this environment variable"),
        ("${file:broken.properties:a}", "broken.properties: "),
    ],
)
def test_reference_that_cannot_be_read_is_an_error_without_content(
    reader: ReferenceReader, tmp_path: Path, text: str, message: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("canary" * MAX_FILE_BYTES)
    (tmp_path / "latin").write_bytes(b"canary\xff")
    (tmp_path / "broken.properties").write_text("a=\\ucanary")
    with pytest.raises(ConfigError, match=message) as caught:
        read(reader, text)
    assert "canary" not in str(caught.value)


def test_credential_without_systemd_is_an_error() -> None:
    with pytest.raises(ConfigError, match="CREDENTIALS_DIRECTORY is not set: add LoadCredential="):
        read(ReferenceReader({}, "/"), "${cred:key}")


def test_allowed_paths_apply_behind_symbolic_links(reader: ReferenceReader, tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "password")
    (tmp_path / "allowed" / "plain").write_text(CANARY)
    (tmp_path / "allowed2").write_text(CANARY)
    allowed = Provider(
        kind=ProviderKind.DIRECTORY, allowed_paths=(str(tmp_path / "allowed"), "password")
    )
    assert read(reader, "${dir:allowed:plain}", allowed) == CANARY
    assert read(reader, "${dir:.:password}", allowed) == CANARY
    assert read(reader, "${dir:allowed:link}", allowed) == CANARY
    for text in ("${dir:.:allowed2}", "${dir:allowed/..:allowed2}", "${dir:/etc:passwd}"):
        with pytest.raises(ConfigError, match=r"allowed\.paths of the provider does not allow"):
            read(reader, text, allowed)
    narrow = Provider(kind=ProviderKind.DIRECTORY, allowed_paths=(str(tmp_path / "allowed"),))
    with pytest.raises(ConfigError, match="does not allow this file"):
        read(reader, "${dir:allowed:link}", narrow)


def test_allowlist_pattern_matches_whole_names(reader: ReferenceReader) -> None:
    allowed = Provider(kind=ProviderKind.ENVIRONMENT, allowed_names=re.compile("NA.*"))
    assert read(reader, "${env:NAME}", allowed) == CANARY
    other = Provider(kind=ProviderKind.ENVIRONMENT, allowed_names=re.compile("N"))
    with pytest.raises(ConfigError, match="does not allow this variable"):
        read(reader, "${env:NAME}", other)


def test_dynamic_references_need_a_restricted_provider(
    reader: ReferenceReader, tmp_path: Path
) -> None:
    """Administrators of the cluster set the values, and the host's files are not theirs."""
    text = f"${{dir:{tmp_path}:password}}"
    with pytest.raises(ConfigError, match=r"a: \${dir.*: the provider may read everything"):
        DynamicReferences(KINDS, {}, "/").resolve({"a": text})
    with pytest.raises(ConfigError, match=r"a: .*the provider 'dir', which does not exist"):
        NO_REFERENCES.resolve({"a": text})
    allowed = Provider(kind=ProviderKind.DIRECTORY, allowed_paths=(str(tmp_path),))
    references = DynamicReferences({"dir": allowed}, {}, "/")
    assert references.resolve({"a": text, "b": "x"}) == {"a": CANARY, "b": "x"}
    (tmp_path / "password").write_text("other")
    assert references.resolve({"a": text}) == {"a": "other"}
    credentials = {"CREDENTIALS_DIRECTORY": str(tmp_path / "credentials")}
    assert DynamicReferences(KINDS, credentials, "/").resolve({"a": "${cred:key}"}) == {"a": CANARY}
