"""The guided tour of `make run`.

Starts a cluster of real daemons, plays a game day scenario on it, and runs the Spark jobs.
Read main.py first.
"""
