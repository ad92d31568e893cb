"""Runs jobs in containers of a Docker engine."""
