"""Placement policies compared on measured traces and GPU profiles: the tables of tests/bench/measured/pal.md."""
