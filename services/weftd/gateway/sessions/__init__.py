"""Shells, commands, copies and forwarded ports: each is one WebSocket here, and requests to the run's node from here.

`relayed.py`: the bytes both ways. `records.py`: the events in the job's history. `runs.py`: which run is meant.
"""
