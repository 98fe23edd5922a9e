"""The future copy of a replica that moves to another directory, and the threads that copy."""
