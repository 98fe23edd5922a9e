"""Ids, errors, time, configuration and telemetry, which every other package uses.

This package imports no other package of the project. Start with ids.py and errors.py.
"""
