"""Tools for operators, and the small Kafka client that they share.

Most tools speak only Kafka's wire protocol, so they work against any Kafka cluster. Requests to
controllers use this project's RPC. Only ``kraftjbod-storage``, ``kraftjbod-dump-log`` and
``kraftjbod-metadata-quorum add-controller`` read disks.

Start with clients/cluster_client.py, then topics_tool.py.
"""
