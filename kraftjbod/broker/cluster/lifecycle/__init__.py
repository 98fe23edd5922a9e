"""The broker's registration, heartbeats and shutdown at the controller."""
