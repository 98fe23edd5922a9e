"""Conversion between records and lines, as in Kafka's console tools."""
