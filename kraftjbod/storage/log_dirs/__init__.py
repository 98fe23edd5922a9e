"""One log directory: thread, states, error handling, free space and I/O statistics."""
