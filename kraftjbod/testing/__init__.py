"""What tests of users' own start clusters and break disks with; this project's tests do as well.

`LocalCluster` runs real daemons as processes on loopback, on disks that can fail for real.
Read local_cluster.py first, then log_disks.py.
"""
