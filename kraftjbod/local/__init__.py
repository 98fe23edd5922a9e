"""A cluster of real daemons on this machine: laid out, started, found again, stopped.

`make up`, the tour, game days and the clusters of tests stand on it.
Knows the daemons by their command lines, files and wire protocols only.
Read cluster_process.py first.
"""
