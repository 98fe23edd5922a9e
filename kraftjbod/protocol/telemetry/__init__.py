"""Records of the telemetry topics: the state of disks, and the lag of groups."""
