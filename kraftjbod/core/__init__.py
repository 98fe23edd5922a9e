"""Ids, errors, time, configuration and telemetry, which every other package uses.

Imports no other package of this project.
Start with ids.py and errors.py.
"""
