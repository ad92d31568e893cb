"""The state of a pool in memory: its nodes, runs and queue, and the holders of each GPU."""
