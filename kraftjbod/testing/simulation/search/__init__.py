"""A search for what nobody thought of: clusters that are broken at random, from a seed, and judged.

faults/ draws what breaks, breaks it and mends it. workload.py are the clients, ledger.py what they
were promised, metadata_laws.py and law_watch.py what must hold; seed_run.py is all of it together,
and the file to begin with.
"""
