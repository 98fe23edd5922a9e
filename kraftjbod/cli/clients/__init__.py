"""A small Kafka client, and functions that send the requests of tools and tests."""
