"""Describes and changes the controllers' quorum."""
