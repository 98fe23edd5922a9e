"""The metadata log: replicated by a quorum of controllers, durable, with snapshots.

Entries are opaque bytes here. No file of this package knows brokers.
Start with machine/core.py and machine/messages.py, then log/log_store.py, then driver.py.
"""
