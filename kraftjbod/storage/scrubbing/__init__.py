"""Periodic reads of cold segments that find bit rot before a reader does."""
