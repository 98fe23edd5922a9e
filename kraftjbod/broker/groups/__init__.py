"""Coordinators of consumer groups: who is a member, who gets what, and how far they have read."""
