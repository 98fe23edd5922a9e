"""The replicas that this broker hosts: made, written, read, placed, removed."""
