"""What the broker says about its disks: the topic `__storage_telemetry`, and figures."""
