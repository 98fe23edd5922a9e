"""Internal topics of the cluster: definition, creation, and reads and writes by brokers."""
