"""One segment: a `.log` file with its indexes; when it rolls, how it is checked and replaced."""
