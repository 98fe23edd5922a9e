"""One broker's life: its registration, its replicas, its doors for clients.

Pure machines stand first, their drivers after them, the doors last.
Knows the controller only by RPC messages.
Read lifecycle_state.py with its twin lifecycle_manager.py first: every pair here is built so.
"""
