"""Build the parts of a broker on its disks: one file per package of broker/ that has parts.

Nothing runs when the parts are built. daemon/broker_server.py starts and closes them.
Start with broker_wiring.py.
"""
