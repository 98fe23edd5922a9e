"""The coordinator of the led partitions of ``__consumer_offsets``: groups, their log and their
timers."""
