"""Measuring a cluster from outside, as Kafka's own tools do."""
