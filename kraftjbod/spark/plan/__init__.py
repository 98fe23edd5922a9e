"""`kraftjbod-pipeline plan`: which replicas to move, for kraftjbod-reassign-partitions."""
