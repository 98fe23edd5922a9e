"""Log compaction: which records are kept, the map of keys, and the passes over the logs."""
