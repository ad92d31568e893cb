"""Decisions of the gateway, such as admission and rates. Pure, with time as an input."""
