"""``kraftjbod-reassign-partitions``: plans as files, moves as orders, and how far they are."""
