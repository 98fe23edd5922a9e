"""Soft state about brokers besides their registrations, and answers to their metadata fetches."""
