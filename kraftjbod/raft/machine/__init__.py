"""Raft itself, pure: no clock, no disk, no socket. Start with core.py and messages.py."""
