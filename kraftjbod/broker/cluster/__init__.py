"""The broker in its cluster: registration, replica assignments, metadata and the controller
channel."""
