"""Which job is served first: each order is one small file with `key` and, where it preempts, a `tier`."""
