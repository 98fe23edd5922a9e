"""Converts between records and lines, as Kafka's console tools do."""
