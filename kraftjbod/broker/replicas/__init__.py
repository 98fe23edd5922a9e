"""The replicas that this broker hosts: creation, appends, reads, placement and removal."""
