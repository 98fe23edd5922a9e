"""Clients' requests about the controller quorum."""
