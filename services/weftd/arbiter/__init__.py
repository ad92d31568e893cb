"""Says which of the runs that share a GPU may launch now: one process per node, started by its executor.

Takes: the slot folders of `libs/weft/sharing`: the share of each run, and the messages of its processes on its socket.
Sends: turns, to the processes; the page of limits and what it saw of each slot, into the slot folders.
Owns:  nothing beyond its process. An arbiter that is started again finds everything in the folders.
"""
