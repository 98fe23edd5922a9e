"""PURE. ``ssl.principal.mapping.rules``: maps the name of a client's certificate to a principal.

The syntax is Kafka's (``SslPrincipalMapper``): ``DEFAULT`` or ``RULE:pattern/replacement/[L|U]``,
separated by commas. ``\\/`` and ``\\,`` are literal. A pattern matches the whole distinguished name
(RFC 2253), and the first rule that matches is used. Patterns come from the configuration, so that
Python's regular expressions are safe here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PART: Final = r"((?:\\.|[^\\/])*)"
_RULE: Final = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?))\s*(?:,|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)")


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One rule of ``ssl.principal.mapping.rules``: turns a certificate's distinguished name into a
    principal's name.

    ``pattern`` None is the rule DEFAULT, which keeps the name. ``case`` is "L" for lower case, "U"
    for upper case, or empty.
    """

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the principal's name for a distinguished name; None if the rule does not match."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        mapped = _REFERENCE.sub(lambda reference: _expand(reference, found), self.replacement)
        match self.case:
            case "L":
                return mapped.lower()
            case "U":
                return mapped.upper()
            case _:
                return mapped


def _expand(reference: re.Match[str], found: re.Match[str]) -> str:
    if reference[2] is None:
        return str(reference[1])
    group = int(reference[2])
    # As in Kafka, a reference to a group that the pattern does not have is literal.
    return (found[group] or "") if group <= found.re.groups else reference[0]


def parse_principal_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse ``ssl.principal.mapping.rules``. An empty text means DEFAULT.

    :raises ValueError: naming the part that is no rule.
    """
    rules: list[PrincipalRule] = []
    position = 0
    text = text.strip()
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(
                f"{text[position:].strip()!r} is no rule: write DEFAULT or "
                "RULE:pattern/replacement/, with L or U at the end for lower or upper case"
            )
        rules.append(_rule(found))
        position = found.end()
    return tuple(rules) or (PrincipalRule(),)


def _rule(found: re.Match[str]) -> PrincipalRule:
    if found[1] is not None:
        return PrincipalRule()
    try:
        return PrincipalRule(re.compile(found[2]), found[3], found[4])
    except re.error as e:
        raise ValueError(f"{found[2]!r} is no regular expression: {e}") from e


def principal_name(rules: tuple[PrincipalRule, ...], name: str) -> str:
    """Return the principal's name for the distinguished name ``name``.

    :raises ValueError: no rule matches.
    """
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return mapped
    raise ValueError(f"no rule of ssl.principal.mapping.rules matches {name}")
