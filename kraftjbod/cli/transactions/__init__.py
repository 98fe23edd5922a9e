"""Transactions before people: what is open, what hangs, and its end."""
