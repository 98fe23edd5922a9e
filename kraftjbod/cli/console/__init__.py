"""Records as lines, and lines as records, as Kafka's console tools have them."""
