"""Build the parts of a broker: one file per package of broker/ that has parts.

Building starts nothing. daemon/broker_server.py starts and closes the parts. Start with
broker_wiring.py.
"""
