"""The data pipeline: a building of its own, on Spark.

Topics come in and go out by the data source and sink ``kraftjbod``, storage state by
DescribeLogDirs and by the topic ``__storage_telemetry``. Transforms take frames and return frames;
jobs read, transform and write. No daemon and no other tool imports this room.
Begin at pipeline_tool.py; each job has a room of its own on top of connector, tables and session.
"""
