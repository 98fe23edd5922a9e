"""`kraftjbod-pipeline telemetry`: what brokers report of their disks, as tables."""
