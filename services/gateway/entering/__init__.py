"""People in runs: a shell, a command, a connection, each by one WebSocket, and onwards by requests to the run's node.

`attach.py`: the operation, and who may. `line.py`: what goes back and forth. `records.py`: what the job's story says.
"""
