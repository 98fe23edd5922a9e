"""Game days: put load on a cluster, inject a fault, and measure the effect.

The faults need a test cluster on this machine, whose disks and daemons are restored afterwards.
The observing mode works with any Kafka cluster.
Read gameday_tool.py first, then scenario_run.py.
"""
