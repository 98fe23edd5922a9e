"""The values of ``sasl.jaas.config`` as Java parses them, and errors without secrets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.jaas import PLAIN_MODULE, JaasEntry, parse_jaas

CANARY = "canary-password"


def test_parse_jaas_reads_options_over_several_lines() -> None:
    text = f"""{PLAIN_MODULE} required // the users
        user_alice="s3cret; = 'x'"
        user_bob='with "quotes"' /* and
        a comment */ serviceName=kafka
        ;
    """
    options = {
        "user_alice": "s3cret; = 'x'",
        "user_bob": 'with "quotes"',
        "serviceName": "kafka",
    }
    assert parse_jaas(text) == JaasEntry(module=PLAIN_MODULE, options=options)


def test_parse_jaas_unescapes_quoted_values_as_java() -> None:
    text = r'M required a="\"\\\t\101\q";'
    assert parse_jaas(text).options == {"a": '"\\\tAq'}


@given(st.text())
def test_parse_jaas_returns_any_quoted_password(password: str) -> None:
    quoted = "".join("\\" + c if c in '"\\' else "\\n" if c == "\n" else c for c in password)
    assert parse_jaas(f'M required password="{quoted}";').options == {"password": password}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at the end: expected the class of a login module"),
        ("M", "at the end: expected a flag such as required"),
        (f'M sometimes password="{CANARY}";', "at character 3: expected one of optional"),
        (f'M required password="{CANARY}"', "at the end: expected an option or ; at the end"),
        (f'M required password "{CANARY}";', "at character 21: expected = after an option"),
        (f"M required password={CANARY} {CANARY};", "expected = after an option"),
        (f'M required password="{CANARY};', "at character 21: a quote is not closed"),
        (f'M required a=1 password="{CANARY}" a=2;', "an option occurs twice"),
        (f'M required password="{CANARY}"; N required;', "only one login module is allowed"),
        ("M required =1;", "at character 12: expected an option, found ="),
        ("M required a=;", "at character 14: expected the value of an option, found ;"),
    ],
)
def test_parse_jaas_error_says_where_and_contains_no_value(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        parse_jaas(text)
    assert CANARY not in str(caught.value)


def test_jaas_entry_repr_contains_no_value() -> None:
    assert CANARY not in repr(parse_jaas(f'M required password="{CANARY}";'))
