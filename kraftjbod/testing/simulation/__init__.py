"""Whole clusters in one process, under virtual time, broken at random from a seed.

`kraftjbod.testing.simulation.memory_vfs` is the disk that it all stands on.
"""
