"""Compaction: what is kept, the map of keys, and the passes over the logs of each directory."""
