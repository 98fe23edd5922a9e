"""PURE. ``NodePrincipals``: which principal belongs to which broker or controller.

``cluster.node.principals`` has patterns such as ``User:CN=broker-{id},OU=kafka``, separated by
``;`` because distinguished names contain commas. ``{id}`` stands for the id of a node. Node ids are
unique among brokers and controllers, so both may use one pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from kraftjbod.core.ids import BrokerId

NODE_PRINCIPALS_KEY: Final = "cluster.node.principals"
#: The mechanism by which brokers log in to each other. Its users may have principals of nodes.
NODE_MECHANISM_KEY: Final = "sasl.mechanism.inter.broker.protocol"
_ID: Final = "{id}"
#: Without leading zeros, so that each node has one principal per pattern.
_NUMBER: Final = "(0|[1-9][0-9]{0,9})"
_TYPE: Final = "User:"


@dataclass(frozen=True, slots=True)
class NodePrincipals:
    """Parsed patterns of ``cluster.node.principals``, which map a principal to the node that has
    it.
    """

    patterns: tuple[re.Pattern[str], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse patterns that are separated by ``;``.

        :raises ValueError: there is none, or one does not have ``{id}`` once or begin with
            ``User:``.
        """
        parts = [part.strip() for part in text.split(";") if part.strip()]
        if not parts:
            raise ValueError(f"{NODE_PRINCIPALS_KEY} has no pattern: write {_TYPE}broker-{_ID}")
        for part in parts:
            if part.count(_ID) != 1 or not part.startswith(_TYPE):
                raise ValueError(
                    f"{part!r} is no pattern of principals: write {_TYPE}, a name, and {_ID} once "
                    f"in place of the node's id, such as {_TYPE}broker-{_ID}"
                )
        return cls(tuple(map(_compiled, parts)))

    def node_of(self, principal: str) -> BrokerId | None:
        """Return the id of the node with this principal; None for the principal of a client."""
        for pattern in self.patterns:
            found = pattern.fullmatch(principal)
            if found is not None:
                return BrokerId(int(found[1]))
        return None


NO_NODES: Final = NodePrincipals(())
"""On a listener of clients: no principal is that of a node."""


def _compiled(part: str) -> re.Pattern[str]:
    before, _, after = part.partition(_ID)
    return re.compile(f"{re.escape(before)}{_NUMBER}{re.escape(after)}")
