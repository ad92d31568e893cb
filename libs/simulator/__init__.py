"""Traces in, the decisions of the production planning, reports out: no clock, and a model for a cluster."""
