"""Periodic reads of closed segments that find bit rot before a consumer or follower meets it."""
