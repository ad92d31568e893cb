"""Completion for shells: what may be typed, read from the parsers, and the script of each shell that offers it."""
