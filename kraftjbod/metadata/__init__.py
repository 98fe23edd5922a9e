"""The cluster metadata: records, the values built from them, and the replay.

Controllers and brokers share this package, so they interpret every record in the same way. The
package makes no decisions, and uses neither disk nor network.

Start with records.py, then state.py.
"""
