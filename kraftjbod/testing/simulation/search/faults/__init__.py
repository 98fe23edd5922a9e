"""The kinds of faults of a simulated cluster, and how each is injected and healed.

schedule.py draws faults and their times, budget.py says which of them are allowed, and
fault_player.py plays them. stage.py has the operations on the cluster that the other files share.
"""
