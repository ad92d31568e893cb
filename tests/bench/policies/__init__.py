"""Placement policies compared on measured traces and GPU profiles: the tables of docs/measurements/pal.md."""
