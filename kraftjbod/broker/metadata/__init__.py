"""Replication of the committed metadata to this broker, and its consequences here."""
