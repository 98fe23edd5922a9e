"""Handlers of the Kafka protocol's APIs, grouped by families of requests."""
