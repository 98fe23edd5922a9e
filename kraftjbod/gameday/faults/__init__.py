"""The faults of a game day, and the observation of the cluster by its clients."""
