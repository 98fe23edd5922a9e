"""Disks: log dirs, replicas in Kafka's format on disk, and the async face of both.

Three colours side by side: policy (PURE), file code that runs in a dir's thread (DISK), and the
loop's view of it (LOOP).
Nothing here knows of sockets or of the cluster.
Start with log_dir_policy.py and log_dir.py, then unified_log.py and log_manager.py.
"""
