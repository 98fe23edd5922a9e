"""Replicas of the node and their directories: registry, loading, checkpoints, swaps, strays."""
