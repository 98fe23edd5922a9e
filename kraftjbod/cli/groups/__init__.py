"""What ``kraftjbod-consumer-groups`` is made of: which offsets a reset sets, and its tables."""
