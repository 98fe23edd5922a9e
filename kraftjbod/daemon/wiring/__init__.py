"""The parts of a broker, built on its disks: one file for each room of broker/ that has some.

Nothing runs when they are built; what starts and closes when is daemon/broker_server.py.
Start with broker_wiring.py.
"""
