"""Decisions about jobs: start, move, resize, share, end."""
