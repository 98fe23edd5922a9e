"""Behaviour that all tools share: options, errors, progress, exit codes."""
