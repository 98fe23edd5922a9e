"""The event loop: timers, queues, background jobs, and long work done in slices."""
