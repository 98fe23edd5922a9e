"""Encoding and decoding of Kafka's protocol, record batches, and this project's RPC.

Uses no sockets and no clock, and does not act on messages.
Start with framing.py, then record_batch.py and kafka_codec.py.
"""
