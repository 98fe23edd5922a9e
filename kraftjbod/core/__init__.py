"""What every other room uses: ids, errors, time, configuration, telemetry.

Imports nothing of ours.
Start with ids.py and errors.py.
"""
