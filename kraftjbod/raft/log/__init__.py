"""The files of the metadata log: entries, snapshots, and writes on a full disk."""
