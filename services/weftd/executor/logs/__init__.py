"""The logs of runs: read as lines, kept for a while and deleted."""
