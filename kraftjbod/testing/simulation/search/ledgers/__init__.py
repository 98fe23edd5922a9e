"""What the cluster acknowledged to clients, for checks of invariants."""
