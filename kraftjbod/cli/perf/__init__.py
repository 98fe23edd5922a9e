"""Performance measurements of a cluster by clients, as with Kafka's tools."""
