"""A whole cluster on this machine, and the guided tour behind `make run`.

Starts real daemons as processes, gives them real work, kills a disk and counts what is left.
Integration tests and benches start their clusters through the same door: cluster_process.py.
Knows the daemons by their command lines, files and wire protocols only.
Read cluster_process.py first, then main.py.
"""
