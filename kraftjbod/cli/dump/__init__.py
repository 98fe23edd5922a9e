"""Prints files of a disk as lines: batches, indexes, snapshots, checkpoints. Read-only."""
