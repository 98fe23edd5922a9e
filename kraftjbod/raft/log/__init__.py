"""The metadata log's files: entries, snapshots, and what a full disk still takes."""
