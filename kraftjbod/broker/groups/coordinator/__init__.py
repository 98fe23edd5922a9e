"""Where a part of ``__consumer_offsets`` is led: its groups in memory, their log, their timers."""
