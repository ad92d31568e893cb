"""Shells, commands, copies and forwarded ports. Each is one WebSocket to the gateway, and requests from the gateway to
the run's node.

`relayed.py`: the bytes both ways. `records.py`: the events in the job's history. `runs.py`: finds the requested run.
"""
