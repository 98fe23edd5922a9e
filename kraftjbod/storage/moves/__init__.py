"""Future copies of replicas that move to another log directory, and the threads that copy them."""
