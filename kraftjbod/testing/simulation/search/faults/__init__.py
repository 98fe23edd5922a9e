"""How each kind of fault is carried out on a simulated cluster, and mended.

stage.py is what they are carried out on; fault_player.py, above, plays a schedule of them.
"""
