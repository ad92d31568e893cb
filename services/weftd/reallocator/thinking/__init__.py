"""Decides verdicts and commands of a reallocator. Pure, with time as an input."""
