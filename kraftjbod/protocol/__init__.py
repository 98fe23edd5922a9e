"""Bytes in, objects out: Kafka's wire protocol, record batches, and our own RPC.

No sockets, no clock, no decisions about what a message means.
Start with framing.py, then record_batch.py and kafka_codec.py.
"""
