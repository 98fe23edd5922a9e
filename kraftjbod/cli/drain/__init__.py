"""Code of ``kraftjbod-drain``: plans and runs the moves that empty a directory or a broker."""
