"""The broker as its controller sees it: its life, its assignments, what it knows of the cluster."""
