"""What would happen from here on: the simulator begins with a cluster that already holds jobs and has a queue.

`present` is the pool as it is and what is supposed of it, `onward` takes the scheduler's walk from there on, with jobs
that have a past (`going`), `compared` compares both sides; `worker` does one side in a process of its own. `durations`
says how long each job is taken to last still. `trace` writes the jobs of a cluster as a trace.
"""
