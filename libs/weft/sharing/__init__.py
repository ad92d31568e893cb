"""One GPU for several runs: what the hook in a job, the arbiter of the node and the executor share."""
