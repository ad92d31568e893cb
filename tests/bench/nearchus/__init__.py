"""NEARCHUS's inner loop held against fixed shares: real containers, real training over TCP, two cores."""
