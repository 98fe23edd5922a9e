"""The faults of a game day, and the cluster watched from without while they last."""
