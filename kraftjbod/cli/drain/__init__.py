"""``kraftjbod-drain``: where the replicas of a directory or a broker go, until it is empty."""
