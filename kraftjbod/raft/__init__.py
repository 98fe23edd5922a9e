"""The metadata log: replicated by a quorum of controllers, durable, with snapshots.

Entries are opaque bytes here. This package does not know brokers or topics.

Start with machine/core.py and machine/messages.py, then log/log_store.py, then driver.py.
"""
