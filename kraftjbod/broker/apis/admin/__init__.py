"""PURE. Orders of an operator about the whole cluster, forwarded to its controller."""
