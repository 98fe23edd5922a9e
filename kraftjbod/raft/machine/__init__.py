"""Raft as pure code: no clock, no disk, no socket. Start with core.py and messages.py."""
