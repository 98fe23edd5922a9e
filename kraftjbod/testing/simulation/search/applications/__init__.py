"""What users run on a simulated cluster besides plain producers and consumers, and its laws.

application.py is what the search asks of each; transactors.py and copier.py write transactions with
the producer of transactional_producer.py, judged by transaction_ledger.py; group_members.py are a
consumer group, of one protocol (classic_members.py) or the other (consumer_members.py), judged by
group_laws.py; fleeting.py and expiring.py have topics that come and go, and records that do, loaded
by topic_load.py and judged by the ledgers.
"""
