"""The metadata log: agreed on by a quorum of controllers, durable, with snapshots.

Entries are opaque bytes here; no file of this folder knows what a broker is.
The machine is whole; the driver has one voter for now, and sends nothing.
Start with core.py and messages.py, then log_store.py, then driver.py.
"""
