"""Telemetry of the broker's disks and groups, sent to internal topics."""
