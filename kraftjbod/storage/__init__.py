"""Log directories, replicas in Kafka's on-disk format, and the asynchronous interface to both.

The package has three layers: policy (PURE), file code that runs in a directory's thread (DISK), and
code that runs on the event loop (LOOP).
Nothing here depends on sockets or on the cluster.
Start with log_dir_policy.py and log_dir.py, then unified_log.py and log_manager.py.
"""
