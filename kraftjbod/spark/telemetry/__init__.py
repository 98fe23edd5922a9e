"""`kraftjbod-pipeline telemetry`: reports of brokers about their disks, as tables."""
