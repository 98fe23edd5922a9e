"""Code of ``kraftjbod-reassign-partitions``: plans as files, requests, and progress."""
