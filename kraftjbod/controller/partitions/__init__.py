"""Decisions about one partition: values in, values or records out.

Nothing here has state except the index of partitions. Start with partition_change.py.
"""
