"""A small Kafka client, and functions for the requests of tools and tests."""
