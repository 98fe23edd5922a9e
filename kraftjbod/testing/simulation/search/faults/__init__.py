"""What breaks in a simulated cluster, and how each kind of it is carried out and mended.

schedule.py draws what is tried and when, budget.py says what may, fault_player.py plays it;
stage.py is what the faults of the other files are carried out on.
"""
