"""What the cluster agreed on: records, the values they build, and the one replay.

Controllers and brokers share this room, so they cannot read a record differently.
Decides nothing and knows no disk or network.
Start with records.py, then state.py.
"""
