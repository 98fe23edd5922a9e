"""PURE. Parses the values of ``sasl.jaas.config``, in the notation of Java's JAAS.

A value is one or more entries: ``org.example.SomeLoginModule required key="value" …;``.
No error message contains a value, because values are passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |"(?P<double>(?:[^"\\\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\n]|\\.)*)'
    |(?P<sign>[=;])
    |(?P<word>[^\s"'=;]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JaasEntry:
    """One login module of a ``sasl.jaas.config`` value: its Java class name, and its options by
    name.
    """

    module: str
    options: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    is_sign: bool
    position: int


def parse_jaas(text: str) -> JaasEntry:
    """Parse the value of ``sasl.jaas.config``, which has exactly one entry.

    :raises ValueError: the message names the problem, and does not quote the text.
    """
    tokens = iter([*_tokens(text)])
    module = _word(tokens, "the class of a login module")
    flag = _word(tokens, "a flag such as required, after the class of the login module")
    if flag.text.lower() not in _FLAGS:
        raise ValueError(
            f"at character {flag.position}: expected one of {', '.join(sorted(_FLAGS))} after "
            "the class of the login module"
        )
    options: dict[str, str] = {}
    while True:
        key = _next(tokens, "an option or ; at the end")
        if key.is_sign:
            if key.text != ";":
                raise ValueError(f"at character {key.position}: expected an option, found =")
            break
        # A password with blanks and without quotes looks like options, so none is named.
        sign = _next(tokens, "= after an option")
        if not (sign.is_sign and sign.text == "="):
            raise ValueError(
                f"at character {sign.position}: expected = after an option. A value with blanks "
                'needs quotes: key="value"'
            )
        if key.text in options:
            raise ValueError(f"at character {key.position}: an option occurs twice")
        options[key.text] = _word(tokens, "the value of an option").text
    if next(tokens, None) is not None:
        raise ValueError("there is text after the first ;, and only one login module is allowed")
    return JaasEntry(module=module.text, options=options)


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(f"at character {position + 1}: a quote is not closed")
        kind = str(found.lastgroup)
        if kind != "space":
            value = found[kind]
            if kind in ("double", "single"):
                value = _ESCAPE.sub(_unescape, value)
            yield _Token(value, kind == "sign", position + 1)
        position = found.end()


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code, 8)) if code.isdigit() and code < "8" else _ESCAPED.get(code, code)


def _next(tokens: Iterator[_Token], expected: str) -> _Token:
    token = next(tokens, None)
    if token is None:
        raise ValueError(f"at the end: expected {expected}")
    return token


def _word(tokens: Iterator[_Token], expected: str) -> _Token:
    token = _next(tokens, expected)
    if token.is_sign:
        raise ValueError(f"at character {token.position}: expected {expected}, found {token.text}")
    return token
