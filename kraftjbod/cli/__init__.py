"""Tools for operators, and the small Kafka client that they share.

The tools speak Kafka's wire protocol only, so they work against any Kafka cluster; the storage
tool alone reads disks.
Start with clients/cluster_client.py, then topics_tool.py.
"""
