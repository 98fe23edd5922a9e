"""What tests of users' own start clusters and break disks with; this project's tests do as well.

`ClusterProcesses` runs real daemons as processes on loopback, on disks that can fail for real.
Knows the daemons by their command lines, files and wire protocols only.
Read local_cluster.py first, then log_disks.py.
"""
