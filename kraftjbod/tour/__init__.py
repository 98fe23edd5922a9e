"""The guided tour of `make run`.

Starts a cluster of real daemons, gives it real work, kills a disk and counts what is left.
Read main.py first, then disk_death.py.
"""
