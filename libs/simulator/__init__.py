"""Traces in, the decisions that the scheduler's own planning takes, reports out: no clock and no cluster but a model."""
