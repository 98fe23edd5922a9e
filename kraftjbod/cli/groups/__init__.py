"""Offsets of resets, the tables of groups, and offsets of partitions."""
