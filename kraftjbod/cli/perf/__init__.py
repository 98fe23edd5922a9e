"""Measures the performance of a cluster with clients, as Kafka's tools do."""
