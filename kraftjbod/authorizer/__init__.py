"""Authorization by Kafka's access control lists: decisions, without requests and connections."""
