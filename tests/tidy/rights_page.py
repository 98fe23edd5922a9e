"""Generates the table of required rights in docs/security.md from ``authorizer/api_rights.py``."""

from __future__ import annotations

from typing import Final

from kraftjbod.authorizer.api_rights import KAFKA_APIS, MEMBERS_ONLY, Need
from tests.checkout import ROOT

PATH: Final = ROOT / "docs/security.md"
_BEGIN: Final = "<!-- api rights: written by make docs -->\n"
_END: Final = "<!-- end -->\n"


def _text(need: Need) -> str:
    result = "left out" if need.code is None else need.code.name
    when = f" ({need.when})" if need.when else ""
    return f"{need.operation.name} {need.resource_type.name}{when}: {result}"


def page() -> str:
    """Return the page with a new table between its two marks."""
    before, _, rest = PATH.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    rows = [
        f"| {api} | {'; '.join(map(_text, needs)) or 'none'} |"
        for api, needs in sorted(KAFKA_APIS.items())
    ]
    table = "\n".join(
        ["| API | required rights, and the response without each |", "|---|---|", *rows]
    )
    members = ", ".join(sorted(MEMBERS_ONLY))
    text = f"{table}\n\nOnly members of the cluster may send these RPC requests: {members}.\n"
    return f"{before}{_BEGIN}\n{text}\n{_END}{after}"
