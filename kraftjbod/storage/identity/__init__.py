"""Whose disk is this: ids in the directories, what the node remembers, opening, attaching."""
