"""A search for unknown bugs: clusters with random faults from a seed, checked by invariants.

faults/ draws, injects and heals faults. workload.py has the clients, ledger.py records what was
acknowledged to them, metadata_laws.py and law_watch.py have the invariants. seed_run.py combines
all of it; read it first.
"""
