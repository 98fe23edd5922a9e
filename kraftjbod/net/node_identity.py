"""LOOP. ``NodeIdentity``: which node the peer of a connection is, according to its principal.

Without node principals every connection may act as every node, and only its address is checked
(cluster_peers.py). ADR 110 has the alternatives.
"""

from __future__ import annotations

from kraftjbod.core.ids import BrokerId
from kraftjbod.core.node_principals import NODE_PRINCIPALS_KEY, NodePrincipals
from kraftjbod.core.telemetry import get_logger, shortened
from kraftjbod.net.connection_context import ANONYMOUS

_log = get_logger()


class NodeIdentity:
    """The node (broker or controller) that the peer of one connection is, according to its
    principal. Decides for which nodes the peer may send requests.
    """

    __slots__ = ("_node_id", "_principal", "_principals")

    def __init__(self, principals: NodePrincipals | None) -> None:
        """:param principals: the principals of nodes; None if they are not checked."""
        self._principals = principals
        self._principal = ANONYMOUS
        self._node_id: BrokerId | None = None

    def __repr__(self) -> str:
        return f"<NodeIdentity {self._principal} node={self._node_id}>"

    @property
    def is_known(self) -> bool:
        """Whether the connection may send requests as a node: its principal belongs to one, or
        principals are not checked.
        """
        return self._principals is None or self._node_id is not None

    def take_principal(self, principal: str) -> None:
        """Set the authenticated principal, which determines the node. If principals are checked and
        the principal belongs to no node, the connection may not act as a node.
        """
        self._principal = principal
        if self._principals is not None:
            self._node_id = self._principals.node_of(principal)

    def may_act_as(self, node_id: BrokerId | None) -> bool:
        """Return whether the connection may send requests of ``node_id``, or, if that is None, of
        some node."""
        if self._principals is None:
            return True
        return self._node_id is not None and node_id in (None, self._node_id)

    def note_refused(self, api: str, peer: str, claimed: BrokerId | None = None) -> str:
        """Log a refused request, and return the text for the sender.

        :param peer: ``host:port`` of the sender.
        :param claimed: id of the node that the request names as its sender, if any.
        """
        _log.warning(
            "node_principal_refused",
            api=shortened(api),
            peer=peer,
            principal=shortened(self._principal),
            claimed=claimed,
        )
        node = "a broker or controller" if claimed is None else f"node {claimed}"
        return (
            f"{shortened(api)} is only for {node}, and {shortened(self._principal)} is not its "
            f"principal by {NODE_PRINCIPALS_KEY} on this listener: use the certificate of the node "
            "and a listener between nodes, or correct that key in the files of all nodes"
        )
