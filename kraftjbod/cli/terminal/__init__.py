"""Common behaviour of the tools: options, errors, progress, exit codes."""
