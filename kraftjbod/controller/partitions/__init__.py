"""What is decided about one partition, and by which rules: values in, values or records out.

Nothing here keeps state but the index of who touches what. Start with partition_change.py.
"""
