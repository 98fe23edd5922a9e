"""Sockets: connections, the two doors (Kafka and RPC) and the two clients.

Knows frames, not what a message means: handlers are injected.
Start with connection.py, then request_session.py and kafka_server.py.
"""
