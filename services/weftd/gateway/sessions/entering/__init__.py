"""People in runs: a shell, a command, a connection, each by one WebSocket, and onwards by requests to the run's node.

Which callers may is in `attach.py` beside this folder. `line.py`: what goes back and forth. `records.py`: what the
job's story says. `places.py`: how many sessions there may be.
"""
