"""Sharing one GPU on a node: what the hook in a job, the arbiter and the executor have in common."""
