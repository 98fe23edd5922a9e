"""One handler per API of the Kafka protocol, by families of requests."""
