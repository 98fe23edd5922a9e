"""The metadata log: agreed on by a quorum of controllers, durable, with snapshots.

Entries are opaque bytes here; no file of this folder knows what a broker is.
One voter for now: elections and majorities are computed over ``voters``, messages come later.
Start with core.py, then log_store.py, then driver.py.
"""
