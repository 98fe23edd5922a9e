"""Helpers for the event loop: timers, queues, background jobs, and long work in slices."""
