"""What lies on a disk, as lines: batches, indexes, snapshots, checkpoints; nothing is written."""
