"""Group coordinators: members, assignments and committed offsets of consumer groups."""
