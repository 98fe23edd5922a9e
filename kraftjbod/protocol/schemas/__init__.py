"""Kafka's message schemas: read, extended by fields and messages of our own, compiled to Python."""
