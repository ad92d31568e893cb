"""Shells, commands, copies and forwarded ports: people in their runs."""
