"""Entry points of the daemons: the only package that builds and connects their parts.

It makes no decisions about the cluster.
Start with runner.py, then read the start order in controller_server.py and broker_server.py.
"""
