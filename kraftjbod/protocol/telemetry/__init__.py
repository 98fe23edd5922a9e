"""Records of the topics in which brokers report: the state of disks, the lag of groups."""
