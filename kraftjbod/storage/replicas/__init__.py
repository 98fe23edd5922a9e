"""The node's replicas and their directories: registry, loading, checkpoints, swaps, strays."""
