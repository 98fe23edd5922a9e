"""The metadata log: agreed on by a quorum of controllers, durable, with snapshots.

Entries are opaque bytes here; no file of this folder knows what a broker is.
Start with machine/core.py and machine/messages.py, then log/log_store.py, then driver.py.
"""
