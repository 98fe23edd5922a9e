"""What every tool does the same way before people: options, errors, progress, the end."""
