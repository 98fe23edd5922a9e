"""Fetching from leaders: one loop per leader and log directory."""
