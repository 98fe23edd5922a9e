"""Tools for operators, and the small Kafka client that they share.

Most tools speak only Kafka's wire protocol, so they work against any Kafka cluster. Requests to
controllers use this project's RPC. Only the storage tool and the dump tools read disks.

Start with clients/cluster_client.py, then topics_tool.py.
"""
