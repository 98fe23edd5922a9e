"""Offsets: which ones a reset of a group sets, the tables of groups, and where partitions end."""
