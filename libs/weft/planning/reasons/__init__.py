"""Reasons: why a job cannot run now, why it is where it is, and what `weft explain` answers."""
