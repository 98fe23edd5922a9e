"""``kraftjbod-drain``: plan and run moves that empty a directory or a broker."""
