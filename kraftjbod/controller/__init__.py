"""Decisions about the cluster: registration, fencing, elections, topics, placement.

Control managers answer ``request -> ControllerResult(records, response)`` and change nothing. Only
replay changes state. All files except quorum_controller.py are PURE. This package uses no disk of a
broker and imports no code of the broker. Start with replication_control.py, then
quorum_controller.py.
"""
