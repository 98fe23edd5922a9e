"""Code of the tools about groups and offsets: tables, resets, and offsets of partitions."""
