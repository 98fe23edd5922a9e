"""Entry points of the daemons: the only folder that builds things and connects them.

Decides nothing.
Start with runner.py, then read the start order in controller_server.py and broker_server.py.
"""
