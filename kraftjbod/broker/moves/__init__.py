"""Moves of replicas between the directories of this broker (KIP-113)."""
