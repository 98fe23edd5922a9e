"""One segment: a `.log` file with its indexes. Rolling, checking and replacing segments."""
