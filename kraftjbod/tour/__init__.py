"""The guided tour of `make run`.

Starts a cluster of real daemons, writes to it, kills a disk under load and counts lost records.
Read main.py first, then disk_death.py.
"""
