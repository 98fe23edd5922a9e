"""`kraftjbod-pipeline telemetry`: writes the reports of brokers about their disks to tables."""
