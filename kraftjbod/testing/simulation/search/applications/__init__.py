"""Applications that users run on a simulated cluster besides plain load, and their invariants.

application.py is their interface. transactors.py and copier.py write transactions with
the producer of transactional_producer.py, checked by transaction_ledger.py. group_members.py is a
consumer group of either protocol (classic_members.py, consumer_members.py), checked by
group_laws.py. fleeting.py and expiring.py have topics that are recreated, and records that expire,
loaded by topic_load.py and checked by the ledgers.
"""
