"""Groups of the classic protocol: the state machine and its events."""
