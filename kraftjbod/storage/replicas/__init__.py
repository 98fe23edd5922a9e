"""Which replicas the node has and where: registry, loading, checkpoints, swaps, strays."""
