"""Clusters of real daemon processes on this machine: lay out, start, find, and stop them.

`make up`, the tour, game days and the clusters of tests use this package.
The package knows the daemons only by their command lines, files and wire protocols.
Read cluster_process.py first.
"""
