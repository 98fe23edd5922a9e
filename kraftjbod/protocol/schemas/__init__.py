"""Kafka's message schemas: loaded, extended by this project's fields, and compiled to Python."""
