"""Thousands of emulated nodes in ten pools, on real servers and real services: `python -m tests.bench hosts`."""
