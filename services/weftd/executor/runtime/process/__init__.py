"""Runs jobs as plain processes of the node."""
