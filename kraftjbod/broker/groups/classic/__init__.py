"""Groups of the classic protocol: their machine, its events."""
