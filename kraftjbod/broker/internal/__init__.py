"""Topics of the cluster's own: what they are, who makes them, and how a broker writes and reads."""
