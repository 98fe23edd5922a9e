"""A game day: a cluster under load, a fault on purpose, and what it cost, in figures.

Breaks disks and brokers of a test cluster on this machine and puts them right again, or only
watches any Kafka cluster. Knows clusters by the wire, and brokers by their files and ports.
Read gameday_tool.py first, then scenario_run.py.
"""
