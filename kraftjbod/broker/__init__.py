"""One broker: its registration, its replicas and its listeners for clients.

Packages are ordered: pure state machines first, then their drivers, then the request handlers. The
broker knows the controller only by RPC messages. Read lifecycle_state.py and its driver
lifecycle_manager.py first: other pairs have the same form.
"""
