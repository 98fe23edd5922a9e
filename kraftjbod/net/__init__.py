"""Sockets: connections, the listeners for Kafka and RPC, and the two clients.

Handles frames but not the meaning of messages: handlers are injected. Start with connection.py,
then request_session.py and kafka_server.py.
"""
