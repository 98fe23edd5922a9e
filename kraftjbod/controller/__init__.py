"""Decisions about the cluster: registration, fencing, elections, topics, placement.

Control managers answer ``request -> ControllerResult(records, response)`` and change nothing;
replay is the only thing that changes state. All PURE but quorum_controller.py.
Never talks to a disk of a broker, and never imports the broker's code.
Start with replication_control.py, then quorum_controller.py.
"""
