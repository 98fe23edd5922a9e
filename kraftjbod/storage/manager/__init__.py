"""All replicas of this node: creation, periodic tasks, and directories added at run time."""
