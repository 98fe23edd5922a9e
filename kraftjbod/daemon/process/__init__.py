"""What a daemon has of the process it runs in: clock and randomness, standard error, systemd.

Start with environment.py, then service_manager.py.
"""
