"""A daemon's access to its process: clock and randomness, standard error, systemd.

Start with environment.py, then service_manager.py.
"""
