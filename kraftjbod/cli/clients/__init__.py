"""A small Kafka client, and what tools and tests ask of a cluster with it."""
