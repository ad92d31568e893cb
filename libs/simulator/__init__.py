"""Traces in, the decisions of the scheduler's own planning, reports out: no clock, and no cluster but a model of one."""
