"""Being written by the test engineer right now; please do not write it too."""
