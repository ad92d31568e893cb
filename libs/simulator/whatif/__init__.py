"""What would happen from here on: the simulator begins with a cluster that already holds jobs and has a queue.

`durations` says how long each job is taken to last still, `trace` writes jobs of a cluster as a trace.
"""
