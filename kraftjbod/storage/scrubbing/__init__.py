"""Cold segments are read again and again, to find bit rot before a reader does."""
