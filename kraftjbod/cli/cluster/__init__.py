"""WIRE. Tools about brokers and leaders of the whole cluster."""
