"""Replication from leaders: one fetch loop per leader and log directory."""
