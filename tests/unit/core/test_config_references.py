"""References such as ``${file:/secrets:password}`` in configurations."""

from __future__ import annotations

import re

import pytest

from kraftjbod.core.config_references import (
    MAX_REFERENCES,
    Provider,
    ProviderKind,
    Reference,
    ResolvedValues,
    declared_providers,
    is_one_reference,
    references_in,
    resolve_references,
)
from kraftjbod.core.errors import ConfigError

FILE_CLASS = "org.apache.kafka.common.config.provider.FileConfigProvider"
ENV_CLASS = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
TEXTS = {"${file:/s:a}": "secret-a", "${env:B}": "b,${env:C}", "${mine:/s:a}": "secret-mine"}


def read(_provider: Provider, reference: Reference) -> str:
    if reference.text not in TEXTS:
        raise ConfigError("there is no such text")
    return TEXTS[reference.text]


def resolve(**values: str) -> ResolvedValues:
    by_key = {key.replace("_", "."): value for key, value in values.items()}
    return resolve_references(by_key, read, source="x.properties")


def test_references_are_replaced_once_and_other_text_stays() -> None:
    found = resolve(a="${file:/s:a}", b="x${env:B}y${file:/s:a}", c="$1 ${no} $${", d="RULE:$1/L")
    assert found.values == {
        "a": "secret-a",
        "b": "xb,${env:C}ysecret-a",
        "c": "$1 ${no} $${",
        "d": "RULE:$1/L",
    }
    assert {key: len(given) for key, given in found.references.items()} == {"a": 1, "b": 2}
    assert "secret" not in repr(found)


def test_references_in_text_have_provider_path_and_key() -> None:
    (one, two) = references_in("a${dir:/run/secrets:x:y} ${env:NAME}")
    assert (one.provider, one.path, one.key) == ("dir", "/run/secrets", "x:y")
    assert (two.provider, two.path, two.key) == ("env", "", "NAME")


@pytest.mark.parametrize(
    ("text", "expected"), [(" ${cred:a} ", True), ("${cred:a}b", False), ("b", False), ("", False)]
)
def test_is_one_reference_is_false_for_text_around_a_reference(text: str, expected: bool) -> None:
    assert is_one_reference(text) is expected


def test_only_needed_keys_are_resolved() -> None:
    values = {"node.id": "${env:B}", "ssl.key.password": "${cred:missing}"}
    found = resolve_references(values, read, source="x", keys=["node.id"])
    assert found.values == {"node.id": "b,${env:C}"}


def test_config_providers_declare_names_with_kafkas_classes() -> None:
    values = {
        "config.providers": "mine, vars",
        "config.providers.mine.class": FILE_CLASS,
        "config.providers.mine.param.allowed.paths": "/s,/t",
        "config.providers.vars.class": ENV_CLASS,
        "config.providers.vars.param.allowlist.pattern": "KAFKA_.*",
        "a": "${mine:/s:a}",
    }
    providers = declared_providers(values, source="x")
    assert providers["mine"] == Provider(kind=ProviderKind.FILE, allowed_paths=("/s", "/t"))
    assert providers["vars"] == Provider(
        kind=ProviderKind.ENVIRONMENT, allowed_names=re.compile("KAFKA_.*")
    )
    assert providers["dir"] == Provider(kind=ProviderKind.DIRECTORY)
    found = resolve_references(values, read, source="x")
    assert found.values == {"config.providers": "mine, vars", "a": "secret-mine"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": "${files:/s:a}"}, r"x: a: \${files:/s:a} names the provider 'files', .*mean file\?"),
        ({"a": "${file:/s:b}"}, r"x: a: \${file:/s:b}: there is no such text"),
        ({"config.providers": "vault"}, r"config\.providers\.vault\.class is not set"),
        (
            {"config.providers": "v", "config.providers.v.class": "org.example.Vault"},
            "is org.example.Vault: no Java class is loaded here",
        ),
        (
            {"config.providers": "file", "config.providers.file.param.allowed.path": "/s"},
            r"allowed\.path is no parameter .*mean config\.providers\.file\.param\.allowed\.paths",
        ),
        (
            {"config.providers": "env", "config.providers.env.param.allowlist.pattern": "("},
            "allowlist.pattern is no regular expression",
        ),
        ({"config.providers.file.param.allowed.paths": "/s"}, "is no parameter of a provider"),
        ({"a": "${env:B}" * (MAX_REFERENCES + 1)}, f"x has more than {MAX_REFERENCES} references"),
    ],
)
def test_wrong_reference_or_provider_is_an_error(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_references(values, read, source="x")


def test_error_message_about_value_has_the_reference_instead() -> None:
    found = resolve(a="${file:/s:a}", b="${env:B}")
    assert found.redacted("a: 'secret-a' is no INT") == "a: '${file:/s:a}' is no INT"
    long = ResolvedValues(values={}, texts={"x" * 60: Reference("env", "", "X", "${env:X}")})
    assert long.redacted(f"a: '{'x' * 50}' is no INT") == "a: '${env:X}' is no INT"
