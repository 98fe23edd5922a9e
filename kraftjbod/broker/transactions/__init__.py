"""Coordinators of transactions: what one is, in memory and in its log, and how it ends."""
