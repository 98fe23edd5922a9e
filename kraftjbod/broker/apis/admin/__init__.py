"""PURE. Administrative requests about the whole cluster, forwarded to the controller."""
