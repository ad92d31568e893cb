"""Weft beside other schedulers on this machine: see `tests.bench.peers.measure`."""
