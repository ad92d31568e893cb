"""Whose turn it is on each GPU, for how long, and what a turn costs. Time comes in as whole microseconds."""
